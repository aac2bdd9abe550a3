// FBP: the response and the inclusion probabilities modelled together, for records seen only because they were sampled.
//
// With p = -v, the log-likelihood is the sum over records of alpha_i times
//   log N(p_i | kappa_y t_i + x_i kappa_x, sigma_pi) + log N(t_i | x_i beta, sigma_y)
//     - (x_i kappa_x + sigma_pi^2 / 2 + kappa_y x_i beta + kappa_y^2 sigma_y^2 / 2).
// It is written here through weighted sufficient statistics: with A = diag(alpha), the first normal term is a quadratic
// form in (kappa_y, kappa_x) around its weighted least-squares estimate, the second one in beta around its own, and the
// last term needs only the sum of alpha and the weighted column sums of x. Algebraically this is the per-record
// likelihood; make.R checks that it is so numerically.
//
// The coefficients are sampled as fixed linear maps of `z_beta` and `z_kappa`, whose Jacobian is constant, so that the
// sampler sees nearly uncorrelated directions.

data {
  int<lower=1> K;
  real<lower=0> total;          // sum of alpha
  vector[K] x_sum;              // X'alpha
  matrix[K, K] x_gram;          // X'AX
  vector[K] beta_hat;           // weighted least squares of t on x
  real<lower=0> t_rss;          // its weighted residual sum of squares
  matrix[K + 1, K + 1] u_gram;  // U'AU, U = (t, X)
  vector[K + 1] kappa_hat;      // weighted least squares of p on U
  real<lower=0> p_rss;          // its weighted residual sum of squares
}

transformed data {
  // columns that make beta_hat + x_map z, kappa_hat + u_map z have covariance proportional to the inverse Gram matrices
  matrix[K, K] x_map = inverse(cholesky_decompose(x_gram))';
  matrix[K + 1, K + 1] u_map = inverse(cholesky_decompose(u_gram))';
}

parameters {
  vector[K] z_beta;
  vector[K + 1] z_kappa;
  real<lower=0> sigma_y;   // standard deviations
  real<lower=0> sigma_pi;
}

transformed parameters {
  vector[K] beta = beta_hat + x_map * z_beta;
  vector[K + 1] kappa = kappa_hat + u_map * z_kappa;
  real kappa_y = kappa[1];
  vector[K] kappa_x = kappa[2:];
}

model {
  // (beta - beta_hat)' X'AX (beta - beta_hat) is z_beta'z_beta, and likewise for kappa
  target += -total * log(sigma_pi) - 0.5 * (p_rss + dot_self(z_kappa)) / square(sigma_pi);
  target += -total * log(sigma_y) - 0.5 * (t_rss + dot_self(z_beta)) / square(sigma_y);
  target += -dot_product(x_sum, kappa_x) - kappa_y * dot_product(x_sum, beta)
            - 0.5 * total * (square(sigma_pi) + square(kappa_y * sigma_y));

  target += normal_lpdf(beta | 0, 10) + normal_lpdf(kappa | 0, 10);  // variance 100
  sigma_y ~ cauchy(0, 1);  // half-Cauchy, as the parameters are positive
  sigma_pi ~ cauchy(0, 1);
}
