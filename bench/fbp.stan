// FBP record by record: the outcome and the inclusion probability, given that the record was sampled.

data {
  int<lower=1> N;
  int<lower=1> K;
  matrix[N, K] x;
  vector[2] y[N];  // (t, v)
  vector[N] alpha;
}

parameters {
  vector[K] beta;
  real kappa_y;
  vector[K] kappa_x;
  real<lower=0> sigma_y;
  real<lower=0> sigma_pi;
}

model {
  vector[N] mean_t = x * beta;
  vector[N] rest = x * kappa_x;

  beta ~ normal(0, 10);
  kappa_y ~ normal(0, 10);
  kappa_x ~ normal(0, 10);
  sigma_y ~ cauchy(0, 1);
  sigma_pi ~ cauchy(0, 1);

  for (i in 1:N) {
    target += alpha[i] * (normal_lpdf(-y[i][2] | kappa_y * y[i][1] + rest[i], sigma_pi)
                          + normal_lpdf(y[i][1] | mean_t[i], sigma_y)
                          - (rest[i] + square(sigma_pi) / 2 + kappa_y * mean_t[i] + square(kappa_y * sigma_y) / 2));
  }
}
