# Golden posterior summaries for the two synthesis models, from `rstan`.
#
#   Rscript tests/golden/posterior/make.R
#
# writes, next to this script,
#   sample.csv        one stratified PPS sample of 1000: field, gender, t = log response, v = log weight (the weights
#                     scaled to mean 1) and alpha, the record weights of the weighted fits
#   values.csv        posterior mean, standard deviation and quartiles of every quantity, with their Monte Carlo
#                     standard errors, bulk and tail effective sample size and R-hat; 12 significant digits
#   diagnostics.csv   divergences and the like of each fit
#   versions.txt      the versions that did so
# The models are in fbs.stan and fbp.stan. Each is fitted with all record weights 1 (`none`) and with those of the
# sample (`alpha`). The tests read these files; they never call R. The densities of the coefficient scales of FBS fall
# off like the fifth power only, without a fourth moment: their sd, reported as it comes, is poorly determined by any
# number of draws, and their quartiles are what to compare.
#
# Needs the Debian packages r-cran-rstan, r-cran-bh, r-cran-rcppeigen and r-cran-posterior; takes some four minutes on
# two cores.

suppressPackageStartupMessages({
  library(rstan)
  library(posterior)
})
set.seed(20250613, kind = "Mersenne-Twister", normal.kind = "Inversion", sample.kind = "Rejection")

here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)))
path <- function(name) file.path(here, name)

# Our own writer: quotes text that holds a comma and nothing else.
write_rows <- function(data, name, digits) {
  text <- lapply(data, function(column) {
    out <- if (is.numeric(column)) formatC(column, digits = digits, format = "g", width = 1) else as.character(column)
    ifelse(grepl(",", out), paste0('"', out, '"'), out)
  })
  writeLines(c(paste(names(data), collapse = ","), do.call(paste, c(unname(text), sep = ","))), path(name))
}

# --- sample ---

# Sizes and mean salaries of the 16 cells of the population.
cells <- data.frame(
  field = factor(rep(1:8, each = 2)),
  gender = factor(rep(c("Male", "Female"), 8)),
  size = c(14599, 13364, 1951, 783, 2918, 1117, 12381, 5728, 3861, 7336, 6433, 6409, 14358, 3773, 2033, 2956),
  mean = c(121125, 99226, 146916, 125358, 118338, 105081, 122601, 100618, 120531, 98060, 122676, 97595, 136370, 116566,
           137349, 106388)
)
n <- 1000
population <- cells[rep(seq_len(nrow(cells)), cells$size), c("field", "gender", "mean")]
stopifnot(nrow(population) == 100000)
population$t <- rnorm(nrow(population), log(population$mean) - 0.08, 0.4)
population$pi <- exp(population$t + rnorm(nrow(population), 0, 0.4))

# Shares of n in proportion to the strata, rounded by largest remainders.
share <- n * tabulate(population$field) / nrow(population)
allocation <- floor(share)
up <- order(share - allocation, decreasing = TRUE)[seq_len(n - sum(allocation))]
allocation[up] <- allocation[up] + 1
stopifnot(sum(allocation) == n)

# PPS with replacement within each field.
records <- do.call(rbind, lapply(1:8, function(h) {
  stratum <- population[population$field == h, ]
  drawn <- stratum[sample(nrow(stratum), allocation[h], replace = TRUE, prob = stratum$pi), ]
  drawn$w <- sum(stratum$pi) / (allocation[h] * drawn$pi)
  drawn
}))
records$v <- log(records$w * n / sum(records$w))
rownames(records) <- NULL

# x: intercept, fields 2 to 8 against 1, Male against Female.
design <- function(data) unname(model.matrix(~ field + gender, data)[, 1:9])

# log N2 of the rows of `y` around the rows of `mean`.
log_normal_2 <- function(y, mean, Sigma) {
  scaled <- backsolve(chol(Sigma), t(y - mean), transpose = TRUE)
  -log(2 * pi) - 0.5 * log(det(Sigma)) - 0.5 * colSums(scaled^2)
}

# Record weights: 1 where a least-squares fit gives a log-density within 1.5 of zero, smaller the farther from that.
x <- design(records)
y <- cbind(records$t, records$v)
ols <- lm.fit(x, y)
surprise <- abs(log_normal_2(y, ols$fitted.values, crossprod(ols$residuals) / (n - ncol(x))))
records$alpha <- pmin(1, 1.5 / surprise)

write_rows(records[c("field", "gender", "t", "v", "alpha")], "sample.csv", 17)
records <- read.csv(path("sample.csv"), stringsAsFactors = TRUE)
records$field <- factor(records$field)
x <- design(records)
y <- cbind(records$t, records$v)
K <- ncol(x)

# --- sufficient statistics ---

# Weighted least squares: coefficients, residual sums of squares and products, Gram matrix.
least_squares <- function(x, y, alpha) {
  fit <- lm.wfit(x, y, alpha)
  residuals <- as.matrix(fit$residuals)
  list(hat = unname(fit$coefficients), rss = unname(crossprod(residuals, alpha * residuals)),
       gram = unname(crossprod(x, alpha * x)))
}

statistics <- list(
  FBS = function(alpha) {
    fit <- least_squares(x, y, alpha)
    list(K = K, total = sum(alpha), G = fit$gram, B_hat = fit$hat, RSS = fit$rss)
  },
  FBP = function(alpha) {
    on_x <- least_squares(x, records$t, alpha)
    on_u <- least_squares(cbind(records$t, x), -records$v, alpha)
    list(K = K, total = sum(alpha), x_sum = colSums(alpha * x), x_gram = on_x$gram, beta_hat = on_x$hat,
         t_rss = drop(on_x$rss), u_gram = on_u$gram, kappa_hat = on_u$hat, p_rss = drop(on_u$rss))
  }
)

# --- the models record by record ---

half_t <- function(value) sum(dt(value / 10, 3, log = TRUE))

# LKJ(6) as a density of the Cholesky factor: |Omega|^5 times the Jacobian of Omega = L L'.
lkj <- function(L) {
  size <- nrow(L)
  5 * log(det(tcrossprod(L))) + sum((size - seq_len(size)) * log(diag(L)))
}

log_normal <- function(b, mean, covariance) {
  -0.5 * (determinant(covariance)$modulus + drop(crossprod(b - mean, solve(covariance, b - mean))))
}

# FBS: mean and precision of b = (beta_y, beta_w) given the rest.
conditional_of_b <- function(q, alpha) {
  P <- solve(tcrossprod(q$s * q$L))
  zero <- matrix(0, K, K)
  prior <- rbind(cbind(solve(tcrossprod(q$sigma_y * q$L_beta)), zero),
                 cbind(zero, solve(tcrossprod(q$sigma_w * q$L_beta))))
  precision <- prior + kronecker(P, crossprod(x, alpha * x))
  list(mean = solve(precision, c(crossprod(x, alpha * y) %*% P)), precision = precision)
}

# FBS: log prior + log-likelihood, less the log-density of b given the rest. Whatever b is, this is the log-density of
# the rest with b integrated out, up to a constant.
by_record_fbs <- function(q, alpha) {
  joint <- sum(alpha * log_normal_2(y, x %*% cbind(q$beta_y, q$beta_w), tcrossprod(q$s * q$L))) +
    log_normal(q$beta_y, 0, tcrossprod(q$sigma_y * q$L_beta)) +
    log_normal(q$beta_w, 0, tcrossprod(q$sigma_w * q$L_beta)) +
    half_t(q$sigma_y) + half_t(q$sigma_w) + half_t(q$s) + lkj(q$L_beta) + lkj(q$L)
  given <- conditional_of_b(q, alpha)
  gap <- c(q$beta_y, q$beta_w) - given$mean
  as.numeric(joint - 0.5 * (determinant(given$precision)$modulus - drop(crossprod(gap, given$precision %*% gap))))
}

# FBP: log prior + log-likelihood.
by_record_fbp <- function(q, alpha) {
  on_x <- drop(x %*% q$beta)
  rest <- drop(x %*% q$kappa_x)
  likelihood <- dnorm(-records$v, q$kappa_y * records$t + rest, q$sigma_pi, log = TRUE) +
    dnorm(records$t, on_x, q$sigma_y, log = TRUE) -
    (rest + q$sigma_pi^2 / 2 + q$kappa_y * on_x + q$kappa_y^2 * q$sigma_y^2 / 2)
  sum(alpha * likelihood) + sum(dnorm(c(q$beta, q$kappa_x, q$kappa_y), 0, 10, log = TRUE)) +
    sum(dcauchy(c(q$sigma_y, q$sigma_pi), 0, 1, log = TRUE))
}
by_record <- list(FBS = by_record_fbs, FBP = by_record_fbp)

# Plausible parameter values, away from the best fit.
random_factor <- function(size) {
  normal <- matrix(rnorm(3 * size^2), 3 * size)
  t(chol(cov2cor(crossprod(normal))))
}
somewhere <- list(
  FBS = function(data) {
    list(beta_y = data$B_hat[, 1] + rnorm(K, 0, 0.05), beta_w = data$B_hat[, 2] + rnorm(K, 0, 0.05),
         sigma_y = exp(rnorm(K)), sigma_w = exp(rnorm(K)), L_beta = random_factor(K), s = runif(2, 0.3, 0.8),
         L = random_factor(2))
  },
  FBP = function(data) {
    z_beta <- rnorm(K)
    z_kappa <- rnorm(K + 1)
    kappa <- data$kappa_hat + backsolve(chol(data$u_gram), z_kappa)
    list(z_beta = z_beta, z_kappa = z_kappa, beta = data$beta_hat + backsolve(chol(data$x_gram), z_beta),
         kappa_y = kappa[1], kappa_x = kappa[-1], sigma_y = runif(1, 0.3, 0.6), sigma_pi = runif(1, 0.3, 0.6))
  }
)

# The Stan program's log-density and the one written record by record may differ by a constant only.
check <- function(model, name, data, alpha) {
  bare <- suppressMessages(sampling(model, data, chains = 0))
  gaps <- replicate(6, {
    q <- somewhere[[name]](data)
    log_prob(bare, unconstrain_pars(bare, q), adjust_transform = FALSE) - by_record[[name]](q, alpha)
  })
  cat(name, "log-density against the per-record form: differences agree to", signif(diff(range(gaps)), 2), "\n")
  stopifnot(diff(range(gaps)) < 1e-8)
}

# The coefficients that fbs.stan draws, standardised by their conditional mean and precision, must be standard normal:
# every mean and every covariance of some thousand draws is within five standard errors of what it should be.
check_coefficients <- function(draws, alpha) {
  flat <- matrix(draws, prod(dim(draws)[1:2]), dimnames = list(NULL, dimnames(draws)[[3]]))
  rows <- round(seq(1, nrow(flat), length.out = 4000))
  standard <- t(vapply(rows, function(row) {
    of <- function(name) unname(flat[row, startsWith(colnames(flat), paste0(name, "["))])
    q <- list(sigma_y = of("sigma_y"), sigma_w = of("sigma_w"), s = of("s"),
              L_beta = t(chol(matrix(of("Omega_beta"), K))),
              L = t(chol(matrix(c(1, flat[row, "Omega12"], flat[row, "Omega12"], 1), 2))))
    given <- conditional_of_b(q, alpha)
    drop(chol(given$precision) %*% (c(of("beta_y"), of("beta_w")) - given$mean))
  }, numeric(2 * K)))
  means <- colMeans(standard) * sqrt(length(rows))
  covariances <- (cov(standard) - diag(2 * K)) * sqrt(length(rows) / (1 + diag(2 * K)))
  cat("FBS coefficients, standardised: largest z of a mean", signif(max(abs(means)), 3), "and of a covariance",
      signif(max(abs(covariances)), 3), "\n")
  stopifnot(abs(means) < 5, abs(covariances) < 5)
}

# --- fits ---

# Debian keeps Boost with the system's headers.
models <- lapply(c(FBP = "fbp.stan", FBS = "fbs.stan"), function(file) {
  stan_model(path(file), boost_lib = "/usr/include", eigen_lib = system.file("include", package = "RcppEigen"))
})
reported <- list(
  FBP = c("beta", "kappa_y", "kappa_x", "sigma_y", "sigma_pi"),
  FBS = c("beta_y", "beta_w", "s", "Sigma11", "Sigma12", "Sigma22", "Omega12", "sigma_y", "sigma_w", "Omega_beta")
)
control <- list(adapt_delta = 0.95, max_treedepth = 12)
weightings <- list(none = rep(1, n), alpha = records$alpha)

# Names of Omega_beta[i,j] on or below the diagonal.
redundant <- function(names) {
  part <- regmatches(names, regexec("^Omega_beta\\[(\\d+),(\\d+)\\]$", names))
  vapply(part, function(p) length(p) == 3 && as.integer(p[2]) >= as.integer(p[3]), logical(1))
}

# One row of values.csv, from draws by iteration and chain.
summary_row <- function(model, weighting, quantity, draws) {
  quartiles <- quantile(draws, c(0.25, 0.5, 0.75), names = FALSE)
  errors <- mcse_quantile(draws, c(0.25, 0.5, 0.75), names = FALSE)
  data.frame(
    model, weighting, quantity, mean = mean(draws), sd = sd(draws), q25 = quartiles[1], q50 = quartiles[2],
    q75 = quartiles[3], mcse_mean = mcse_mean(draws), mcse_q25 = errors[1], mcse_q50 = errors[2], mcse_q75 = errors[3],
    ess_bulk = ess_bulk(draws), ess_tail = ess_tail(draws), rhat = rhat(draws)
  )
}

values <- diagnostics <- NULL
for (name in names(models)) {
  for (weighting in names(weightings)) {
    alpha <- weightings[[weighting]]
    data <- statistics[[name]](alpha)
    check(models[[name]], name, data, alpha)
    start <- proc.time()[["elapsed"]]
    fit <- sampling(models[[name]], data, pars = reported[[name]], chains = 4, cores = 2, warmup = 2000, iter = 27000,
                    seed = 20250613, control = control, refresh = 0)
    seconds <- proc.time()[["elapsed"]] - start
    draws <- as.array(fit)
    if (name == "FBS") check_coefficients(draws, alpha)
    quantities <- setdiff(dimnames(draws)[[3]], "lp__")
    quantities <- quantities[!redundant(quantities)]
    rows <- do.call(rbind, lapply(quantities, function(q) summary_row(name, weighting, q, draws[, , q])))
    values <- rbind(values, rows)
    diagnostics <- rbind(diagnostics, data.frame(
      model = name, weighting, divergences = get_num_divergent(fit), treedepth_hits = get_num_max_treedepth(fit),
      min_ebfmi = min(get_bfmi(fit)), max_rhat = max(rows$rhat), min_ess_bulk = min(rows$ess_bulk),
      min_ess_tail = min(rows$ess_tail), draws = prod(dim(draws)[1:2]), seconds = round(seconds)
    ))
    print(diagnostics[nrow(diagnostics), ], row.names = FALSE)
    write_rows(values, "values.csv", 12)
    write_rows(diagnostics, "diagnostics.csv", 6)
  }
}
writeLines(c(
  R.version.string, paste("rstan", packageVersion("rstan")), paste("StanHeaders", packageVersion("StanHeaders")),
  paste("posterior", packageVersion("posterior")), paste("RcppEigen", packageVersion("RcppEigen"))
), path("versions.txt"))
stopifnot(diagnostics$divergences == 0, diagnostics$max_rhat < 1.005, diagnostics$min_ess_bulk > 4000,
          diagnostics$min_ebfmi > 0.3)
