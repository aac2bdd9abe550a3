// FBS record by record: the logs of the outcome and of the weight are bivariate normal around two regressions on x.

data {
  int<lower=1> N;
  int<lower=1> K;
  matrix[N, K] x;
  vector[2] y[N];  // (t, v)
  vector[N] alpha;
}

parameters {
  vector[K] beta_y;
  vector[K] beta_w;
  vector<lower=0>[K] sigma_y;
  vector<lower=0>[K] sigma_w;
  cholesky_factor_corr[K] L_beta;
  vector<lower=0>[2] s;
  cholesky_factor_corr[2] L;
}

model {
  vector[N] mean_y = x * beta_y;
  vector[N] mean_w = x * beta_w;
  matrix[2, 2] L_Sigma = diag_pre_multiply(s, L);

  sigma_y ~ student_t(3, 0, 10);
  sigma_w ~ student_t(3, 0, 10);
  L_beta ~ lkj_corr_cholesky(6);
  beta_y ~ multi_normal_cholesky(rep_vector(0, K), diag_pre_multiply(sigma_y, L_beta));
  beta_w ~ multi_normal_cholesky(rep_vector(0, K), diag_pre_multiply(sigma_w, L_beta));
  s ~ student_t(3, 0, 10);
  L ~ lkj_corr_cholesky(6);

  for (i in 1:N)
    target += alpha[i] * multi_normal_cholesky_lpdf(y[i] | [mean_y[i], mean_w[i]]', L_Sigma);
}
