# Times one fit by rstan of a synthesis model written straight from its definition, record by record.
#
#   Rscript bench/rstan_fit.R tests/golden/posterior/sample.csv fbs
#
# The CSV file has the columns field, gender, t, v and alpha; the model is fbs or fbp. One chain, 1000 warm-up
# iterations and 1000 draws, default settings of the sampler. Prints one line of JSON: seconds of sampling (warm-up
# included, compilation not), divergences, smallest bulk effective sample size of the parameters, version, and the peak
# memory of the process (the compiler is another process).

suppressPackageStartupMessages(library(rstan))

here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)))
arguments <- commandArgs(TRUE)
stopifnot(length(arguments) == 2, arguments[2] %in% c("fbs", "fbp"))
records <- read.csv(arguments[1])
name <- arguments[2]

x <- model.matrix(~ factor(field) + factor(gender), records)
data <- list(N = nrow(x), K = ncol(x), x = unname(x[, seq_len(ncol(x))]), y = cbind(records$t, records$v),
             alpha = records$alpha)

# Debian keeps Boost with the system's headers. The parser's remarks are discarded: standard output is one line.
remarks <- capture.output(model <- suppressMessages(stan_model(
  file.path(here, paste0(name, ".stan")), boost_lib = "/usr/include",
  eigen_lib = system.file("include", package = "RcppEigen")
)))

fit <- suppressWarnings(sampling(model, data, chains = 1, warmup = 1000, iter = 2000, seed = 1, refresh = 0))
draws <- as.array(fit)
# the coefficients and the parameters of the variances, without the coefficients' own scales and correlations; fixed
# entries of the Cholesky factor of a correlation are left out, because there is nothing to estimate
watched <- grep("^(beta|kappa|sigma_pi$|sigma_y$|s\\[|L\\[)", dimnames(draws)[[3]], value = TRUE)
moving <- watched[apply(draws[, , watched], 2, function(d) diff(range(d)) > 1e-8)]
ess <- vapply(moving, function(q) ess_bulk(draws[, , q]), numeric(1))
peak <- as.numeric(gsub("\\D", "", grep("^VmHWM", readLines("/proc/self/status"), value = TRUE))) / 1024
cat(sprintf('{"seconds": %.2f, "divergences": %d, "effective_draws": %.0f, "version": "%s", "peak_mib": %.0f}\n',
            sum(get_elapsed_time(fit)), get_num_divergent(fit), min(ess), as.character(packageVersion("rstan")), peak))
