# Golden values for the diagnostics of posterior draws, from R's `posterior` package.
#
#   Rscript tests/golden/diagnostics/make.R
#
# writes, next to this script,
#   <case>_<chains>x<draws>.csv   draws, a column for each chain
#   values.csv                    rhat, ess_bulk and ess_tail of each file; and ebfmi, of the same numbers as if they
#                                 were energies: the smallest over chains of Σ(Eᵢ − Eᵢ₋₁)² / Σ(Eᵢ − Ē)²
#                                 (Betancourt 2016, arXiv:1604.00695), which `posterior` does not have
#   versions.txt                  the versions of R and of posterior that did so
# The tests read these files; they never call R. Numbers have 17 significant digits, so that a double survives the trip.

suppressPackageStartupMessages(library(posterior))
set.seed(20250612, kind = "Mersenne-Twister", normal.kind = "Inversion", sample.kind = "Rejection")

here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)))
shapes <- list(c(chains = 4, draws = 250), c(chains = 6, draws = 101))

# --- draws: draw × chain ---

normal <- function(draws, chains) matrix(rnorm(draws * chains), draws, chains)

# A stationary first-order autoregression in every chain.
autoregressive <- function(draws, chains, rho) {
  noise <- normal(draws, chains)
  value <- noise
  for (i in seq_len(draws)[-1]) value[i, ] <- rho * value[i - 1, ] + sqrt(1 - rho^2) * noise[i, ]
  value
}

cases <- list(
  independent = normal,
  positive = function(draws, chains) autoregressive(draws, chains, 0.7),
  slow = function(draws, chains) autoregressive(draws, chains, 0.98),
  antithetic = function(draws, chains) autoregressive(draws, chains, -0.4),
  strongly_antithetic = function(draws, chains) autoregressive(draws, chains, -0.9),
  heavy_tailed = function(draws, chains) matrix(rt(draws * chains, 1), draws, chains),
  ties = function(draws, chains) round(autoregressive(draws, chains, 0.5), 1),
  shifted_chain = function(draws, chains) sweep(normal(draws, chains), 2, c(0.5, rep(0, chains - 1)), "+"),
  wider_chain = function(draws, chains) sweep(normal(draws, chains), 2, c(2, rep(1, chains - 1)), "*")
)

# --- values ---

ebfmi <- function(energy) min(apply(energy, 2, function(e) sum(diff(e)^2) / sum((e - mean(e))^2)))

# posterior warns where it caps the ESS of antithetic draws; the cap is among what is compared.
diagnose <- function(draws) {
  suppressWarnings(
    c(rhat = rhat(draws), ess_bulk = ess_bulk(draws), ess_tail = ess_tail(draws), ebfmi = ebfmi(draws))
  )
}

write_numbers <- function(data, file) {
  number <- sapply(data, is.numeric)
  data[number] <- lapply(data[number], function(column) sprintf("%.17g", column))
  write.csv(data, file.path(here, file), row.names = FALSE, quote = FALSE)
}

values <- NULL
for (case in names(cases)) {
  for (shape in shapes) {
    file <- sprintf("%s_%dx%d.csv", case, shape["chains"], shape["draws"])
    draws <- cases[[case]](shape["draws"], shape["chains"])
    colnames(draws) <- paste0("chain", seq_len(ncol(draws)))
    write_numbers(as.data.frame(draws), file)
    values <- rbind(values, data.frame(file = file, t(diagnose(draws))))
  }
}
write_numbers(values, "values.csv")
writeLines(c(R.version.string, paste("posterior", packageVersion("posterior"))), file.path(here, "versions.txt"))
