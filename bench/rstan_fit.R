# Times one fit by rstan of a synthesis model written straight from its definition, record by record.
#
#   Rscript bench/rstan_fit.R tests/golden/posterior/sample.csv fbs
#
# The CSV file has the columns field, gender, t, v and alpha; the model is fbs or fbp. One chain, 1000 warm-up
# iterations and 1000 draws, default settings of the sampler. Prints one line: model, number of records, seconds of
# sampling (warm-up included, compilation not), divergences, smallest bulk effective sample size of the parameters.

suppressPackageStartupMessages(library(rstan))

here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)))
arguments <- commandArgs(TRUE)
stopifnot(length(arguments) == 2, arguments[2] %in% c("fbs", "fbp"))
records <- read.csv(arguments[1])
name <- arguments[2]

x <- model.matrix(~ factor(field) + factor(gender), records)
data <- list(N = nrow(x), K = ncol(x), x = unname(x[, seq_len(ncol(x))]), y = cbind(records$t, records$v),
             alpha = records$alpha)

# Debian keeps Boost with the system's headers. What the parser remarks goes nowhere: standard output is one line.
remarks <- capture.output(model <- suppressMessages(stan_model(
  file.path(here, paste0(name, ".stan")), boost_lib = "/usr/include",
  eigen_lib = system.file("include", package = "RcppEigen")
)))

fit <- suppressWarnings(sampling(model, data, chains = 1, warmup = 1000, iter = 2000, seed = 1, refresh = 0))
draws <- as.array(fit)
# the fixed entries of Cholesky factors of correlations have nothing to estimate, lp__ is no parameter
moving <- setdiff(dimnames(draws)[[3]][apply(draws, 3, function(d) diff(range(d)) > 1e-8)], "lp__")
ess <- vapply(moving, function(q) ess_bulk(draws[, , q]), numeric(1))
cat(sprintf("%s n=%d seconds=%.1f divergences=%d min_bulk_ess=%.0f\n", name, nrow(x), sum(get_elapsed_time(fit)),
            get_num_divergent(fit), min(ess)))
