// FBS: the logs of the response and of the weight are bivariate normal around two regressions on x.
//
// The log-likelihood is the sum over records of alpha_i log N2((t_i, v_i) | (x_i beta_y, x_i beta_w), Sigma), with
//   Sigma = diag(s) Omega diag(s),  Omega ~ LKJ(6),  s ~ half-t(3, 0, 10),
//   beta_y ~ N(0, diag(sigma_y) Omega_beta diag(sigma_y)),  beta_w ~ N(0, diag(sigma_w) Omega_beta diag(sigma_w)),
//   Omega_beta ~ LKJ(6),  every sigma_y[k], sigma_w[k] ~ half-t(3, 0, 10).
//
// It is written here through weighted sufficient statistics: with A = diag(alpha), G = X'AX, B_hat the weighted least-
// squares estimate of B = (beta_y, beta_w) and RSS its weighted residual cross-products, the log-likelihood is
//   -total log(2 pi) - total / 2 log|Sigma| - tr(Sigma^-1 (RSS + (B - B_hat)' G (B - B_hat))) / 2.
// Algebraically this is the per-record likelihood.
//
// Given the scales and correlations, b = (beta_y, beta_w) is normal. The coefficients and their scales make a funnel,
// so b is integrated out for the sampler and drawn from its exact conditional afterwards: with D the prior covariance
// of b and H^-1 = Sigma (x) G^-1, the integral over b is, up to a constant,
//   |Sigma|^(-(total - K) / 2) exp(-tr(Sigma^-1 RSS) / 2) N(b_hat | 0, D + H^-1).
// The joint posterior of all quantities is the one stated above; make.R checks the integral against the per-record form
// and the draws of b against their conditional.

functions {
  // D + Sigma (x) G^-1, the covariance of b_hat given the scales and correlations.
  matrix covariance_of_hat(matrix L_y, matrix L_w, matrix Sigma, matrix G_inverse) {
    int K = rows(G_inverse);
    matrix[2 * K, 2 * K] covariance;
    covariance[1:K, 1:K] = tcrossprod(L_y) + Sigma[1, 1] * G_inverse;
    covariance[(K + 1):(2 * K), (K + 1):(2 * K)] = tcrossprod(L_w) + Sigma[2, 2] * G_inverse;
    covariance[1:K, (K + 1):(2 * K)] = Sigma[1, 2] * G_inverse;
    covariance[(K + 1):(2 * K), 1:K] = Sigma[1, 2] * G_inverse;
    return covariance;
  }
}

data {
  int<lower=1> K;
  real<lower=K> total;  // sum of alpha
  matrix[K, K] G;       // X'AX
  matrix[K, 2] B_hat;   // weighted least squares of (t, v) on x
  matrix[2, 2] RSS;     // its weighted residual sums of squares and products
}

transformed data {
  matrix[K, K] G_half = inverse(cholesky_decompose(G))';  // G_half G_half' = G^-1
  matrix[K, K] G_inverse = tcrossprod(G_half);
  vector[2 * K] b_hat = to_vector(B_hat);
}

parameters {
  vector<lower=0>[K] sigma_y;
  vector<lower=0>[K] sigma_w;
  cholesky_factor_corr[K] L_beta;
  vector<lower=0>[2] s;
  cholesky_factor_corr[2] L;
}

model {
  matrix[2, 2] L_Sigma = diag_pre_multiply(s, L);
  matrix[2, 2] Sigma = tcrossprod(L_Sigma);
  matrix[2 * K, 2 * K] covariance = covariance_of_hat(
    diag_pre_multiply(sigma_y, L_beta), diag_pre_multiply(sigma_w, L_beta), Sigma, G_inverse);

  target += -(total - K) * sum(log(diagonal(L_Sigma))) - 0.5 * trace(mdivide_left_spd(Sigma, RSS));
  b_hat ~ multi_normal_cholesky(rep_vector(0, 2 * K), cholesky_decompose(covariance));

  sigma_y ~ student_t(3, 0, 10);  // half-t, as the parameters are positive
  sigma_w ~ student_t(3, 0, 10);
  s ~ student_t(3, 0, 10);
  L_beta ~ lkj_corr_cholesky(6);
  L ~ lkj_corr_cholesky(6);
}

generated quantities {
  vector[K] beta_y;
  vector[K] beta_w;
  matrix[2, 2] Sigma = tcrossprod(diag_pre_multiply(s, L));
  real Sigma11 = Sigma[1, 1];
  real Sigma12 = Sigma[1, 2];
  real Sigma22 = Sigma[2, 2];
  real Omega12 = L[2, 1];
  matrix[K, K] Omega_beta = tcrossprod(L_beta);
  {
    // A draw of b given the rest, without inverting small or large covariances: with u ~ N(0, D) and e ~ N(0, H^-1),
    // b = b_hat - e - H^-1 (D + H^-1)^-1 (b_hat - u - e) has the conditional distribution of b given b_hat.
    matrix[K, K] L_y = diag_pre_multiply(sigma_y, L_beta);
    matrix[K, K] L_w = diag_pre_multiply(sigma_w, L_beta);
    matrix[K, 2] noise = G_half * to_matrix(to_vector(normal_rng(rep_vector(0, 2 * K), 1)), K, 2)
                         * diag_pre_multiply(s, L)';
    vector[K] u_y = L_y * to_vector(normal_rng(rep_vector(0, K), 1));
    vector[K] u_w = L_w * to_vector(normal_rng(rep_vector(0, K), 1));
    vector[2 * K] gap = b_hat - append_row(u_y, u_w) - to_vector(noise);
    vector[2 * K] solved = mdivide_left_spd(covariance_of_hat(L_y, L_w, Sigma, G_inverse), gap);
    matrix[K, 2] B = B_hat - noise - G_inverse * to_matrix(solved, K, 2) * Sigma;
    beta_y = B[, 1];
    beta_w = B[, 2];
  }
}
