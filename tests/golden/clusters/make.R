# Golden likelihoods and estimates of a bivariate model with cluster effects, from `nlme`.
#
#   Rscript tests/golden/clusters/make.R
#
# writes, next to this script,
#   sample.csv    38 clusters of 1 to 30 records: cell, cluster, t and v, and `times`, how often a record is counted
#   values.csv    by maximum likelihood and by REML: the largest log-likelihood, and the covariances Σ within and T between
#                 clusters at which it is found, and the coefficients; 17 significant digits
#   versions.txt  the versions that did so
# A record with the weight α = 2 in a pseudo-likelihood given the cluster effects counts as two records with the same
# values, and one with α = 0 as none. The tests read these files; they never call R.
#
# Needs the Debian package r-cran-nlme; takes some ten seconds.

suppressPackageStartupMessages(library(nlme))
set.seed(20261119, kind = "Mersenne-Twister", normal.kind = "Inversion", sample.kind = "Rejection")

here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)))
path <- function(name) file.path(here, name)

# --- sample ---

sizes <- sample(1:30, 38, replace = TRUE)
n <- sum(sizes)
cluster <- rep(seq_along(sizes), sizes)
cell <- sample(0:2, n, replace = TRUE, prob = c(0.5, 0.3, 0.2))
pair <- function(count, s_t, s_v, rho) {
  first <- rnorm(count)
  cbind(s_t * first, s_v * (rho * first + sqrt(1 - rho^2) * rnorm(count)))
}
e <- pair(n, 0.6, 0.5, -0.4)
u <- pair(length(sizes), 0.3, 0.25, 0.5)
t <- 10 + 0.2 * (cell == 1) - 0.3 * (cell == 2) + u[cluster, 1] + e[, 1]
v <- 0.1 * (cell == 1) + u[cluster, 2] + e[, 2]
times <- sample(0:2, n, replace = TRUE, prob = c(0.1, 0.5, 0.4))
times[cluster == 5] <- 0  # a cluster without any weight
sample <- data.frame(cluster = cluster - 1, cell, t = round(t, 6), v = round(v, 6), times)
write.csv(sample, path("sample.csv"), row.names = FALSE, quote = FALSE)

# --- values ---

counted <- sample[rep(seq_len(n), sample$times), ]
counted$id <- seq_len(nrow(counted))
long <- rbind(
  data.frame(counted[c("id", "cluster", "cell")], what = "t", y = counted$t),
  data.frame(counted[c("id", "cluster", "cell")], what = "v", y = counted$v)
)
long <- long[order(long$cluster, long$id, long$what), ]
for (name in c("cluster", "cell", "what")) long[[name]] <- factor(long[[name]])
control <- lmeControl(maxIter = 500, msMaxIter = 500, niterEM = 100, tolerance = 1e-12, msTol = 1e-14,
                      returnObject = TRUE)
values <- do.call(rbind, lapply(c("ML", "REML"), function(method) {
  found <- lme(y ~ 0 + what + what:cell, long, random = ~ 0 + what | cluster,
               correlation = corSymm(form = ~ 1 | cluster / id), weights = varIdent(form = ~ 1 | what),
               method = method, control = control)
  ratio <- coef(found$modelStruct$varStruct, unconstrained = FALSE)
  rho <- coef(found$modelStruct$corStruct, unconstrained = FALSE)
  effects <- as.matrix(getVarCov(found))
  beta <- fixef(found)
  data.frame(
    method,
    quantity = c("log_likelihood", "sigma_tt", "sigma_tv", "sigma_vv", "effects_tt", "effects_tv", "effects_vv",
                 names(beta)),
    value = formatC(c(as.numeric(logLik(found)), found$sigma^2 * c(1, ratio * rho, ratio^2),
                      effects[1, 1], effects[1, 2], effects[2, 2], beta), digits = 17, format = "g", width = 1)
  )
}))
write.csv(values, path("values.csv"), row.names = FALSE, quote = FALSE)
writeLines(c(R.version.string, paste("nlme", packageVersion("nlme"))), path("versions.txt"))
