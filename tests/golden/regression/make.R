# Golden values for regressions, from R's `survey` package (`svyglm`).
#
#   Rscript tests/golden/regression/make.R
#
# reads the records that the neighbouring folders have, and writes, next to this script,
#   values.csv     estimate, standard error, degrees of freedom and interval of every coefficient
#   file-1.csv …   apistrat three times, with outcome and weight disturbed, in place of synthetic files
#   combined.csv   the regressions of these files, combined by `MIcombine` of the package mitools
#   versions.txt   the versions of R and of its packages that did so
# The tests read these files; they never call R. Coefficients have R's names; those of svysynth come in the same order.
#
# The convergence criterion of `glm` is set so that logistic models are fitted to all digits. In replicate designs, records
# with a missing answer are left out by `subset`: R's own way of leaving them out counts degrees of freedom with them.

source(file.path(dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE))), "..", "tables.R"))
options(survey.lonely.psu = "fail")

golden <- function(folder, file) read.csv(file.path(here, "..", folder, paste0(file, ".csv")), stringsAsFactors = TRUE)
numeric_yes <- function(data) {
  data$u <- as.numeric(data$u == "Yes")
  data
}
found <- list()
add <- function(case, design, formula, family = "linear", domain = "", lonely = "fail") {
  options(survey.lonely.psu = lonely)
  if (domain != "") design <- eval(substitute(subset(design, inside), list(inside = str2lang(domain))))
  formula_r <- as.formula(gsub("(\\w+ [<>]=? [0-9.]+) ~", "as.numeric(\\1) ~", formula))
  kind <- if (family == "linear") gaussian() else quasibinomial()
  control <- glm.control(epsilon = 1e-16, maxit = 100)
  fit <- do.call(svyglm, list(formula_r, design, family = kind, control = control)) # by value: svyglm looks names up elsewhere
  stopifnot(!anyNA(coef(fit)))
  interval <- confint(fit, ddf = fit$df.residual)
  found[[length(found) + 1]] <<- data.frame(
    case, formula, family, domain, lonely, term = names(coef(fit)), estimate = unname(coef(fit)),
    se = unname(SE(fit)), df = fit$df.residual, lower = unname(interval[, 1]), upper = unname(interval[, 2])
  )
}

# stratified, with fpc: apistrat
data <- numeric_yes(golden("answers", "apistrat"))
data$s <- factor(data$s)
strat <- svydesign(ids = ~1, strata = ~stratum, fpc = ~fpc, weights = ~w, data = data)
add("apistrat", strat, "y ~ a")
add("apistrat", strat, "y ~ s + a + x")
add("apistrat", strat, "y ~ s * a")
add("apistrat", strat, "y ~ 0 + s + a")
add("apistrat", strat, "y ~ a + a:x")
add("apistrat", strat, "y ~ 0 + s:x")
add("apistrat", strat, "y ~ z + u + a")
add("apistrat", strat, "log(y) ~ s + z * u")
add("apistrat", strat, "y ~ s + a", domain = "y > 600")
add("apistrat", strat, "z ~ x + a", domain = "y > 600")
add("apistrat", strat, "u ~ s + x", "logistic")
add("apistrat", strat, "u ~ a + x", "linear")
add("apistrat", strat, "y ~ 0 + x + s * a")
add("apistrat", strat, "y > 650 ~ s * a + z", "logistic")
add("apistrat", strat, "y <= 650 ~ a", "logistic", "x > 600")

# one stage of clusters, with fpc: apiclus2
clus <- svydesign(ids = ~psu, fpc = ~fpc, weights = ~w, data = numeric_yes(golden("answers", "apiclus2")))
add("apiclus2", clus, "y ~ a + x")
add("apiclus2", clus, "y ~ s * a + z")
add("apiclus2", clus, "u ~ z + x", "logistic")
add("apiclus2", clus, "y ~ a + x", domain = "y > 600")

# nhanes: strata of clusters; logistic on HI_CHOL
health <- svydesign(ids = ~psu, strata = ~stratum, weights = ~w, data = numeric_yes(golden("answers", "nhanes")), nest = TRUE)
health <- update(health, s = factor(s))
add("nhanes", health, "u ~ s + x", "logistic")
add("nhanes", health, "u ~ s * y", "logistic")
add("nhanes", health, "u ~ s + x", "logistic", "y > 1")
add("nhanes", health, "x ~ s * u", "linear")

# JK1 replicate weights of apiclus2
jk <- numeric_yes(golden("answers", "jk1"))
jk <- svrepdesign(
  data = jk, weights = ~w, repweights = jk[grepl("^r[0-9]", names(jk))], type = "JK1", combined.weights = TRUE, mse = TRUE,
  scale = (sum(grepl("^r[0-9]", names(jk))) - 1) / sum(grepl("^r[0-9]", names(jk)))
)
add("jk1", jk, "y ~ a + x")
add("jk1", jk, "y ~ a * x", domain = "y > 600")
add("jk1", jk, "z ~ a + u", domain = "!is.na(z) & !is.na(u)")
add("jk1", jk, "u ~ x", "logistic", "!is.na(u)")

# post-stratified: apistrat
post <- postStratify(update(strat, a = factor(a)), ~a, data.frame(a = c("No", "Yes"), Freq = c(2100, 4094)))
add("post", post, "y ~ s + a + x")
add("post", post, "y ~ s * a", domain = "y > 600")
add("post", post, "y > 650 ~ s + a", "logistic")

# two stages, with fpc at both
two <- svydesign(ids = ~psu + ssu, fpc = ~fpc1 + fpc2, weights = ~w, data = golden("stages", "apiclus2"))
add("two_stages", two, "y ~ a + b")
add("two_stages", two, "log(y) ~ a * b")
add("two_stages", two, "y > 650 ~ a", "logistic", "y > 400")

# one stage of clusters: apiclus1
one <- svydesign(ids = ~psu, fpc = ~fpc, weights = ~w, data = golden("calibration", "apiclus1"))
add("apiclus1", one, "y ~ a + b")
add("apiclus1", one, "y > 650 ~ a + b", "logistic")

# strata with one unit
for (case in c("lonely", "lonely_fpc", "lonely_clusters")) {
  data <- golden("survey", case)
  lonely <- switch(case,
    lonely = svydesign(ids = ~1, strata = ~stratum, weights = ~w, data = data),
    lonely_fpc = svydesign(ids = ~1, strata = ~stratum, weights = ~w, fpc = ~fpc, data = data),
    lonely_clusters = svydesign(ids = ~psu, strata = ~stratum, weights = ~w, data = data, nest = TRUE)
  )
  for (policy in c("certainty", "adjust", "average")) add(case, lonely, "y ~ a + b", lonely = policy)
}

# replicate weights of the file: Fay's method, and factors for each replicate
rep_design <- function(case, ...) {
  data <- golden("replicate_weights", case)
  svrepdesign(data = data, weights = ~w, repweights = data[grepl("^r[0-9]", names(data))], combined.weights = TRUE, ...)
}
add("fay", rep_design("fay", type = "Fay", rho = 0.3, mse = TRUE), "y ~ a * b", "logistic")
add("fay", rep_design("fay", type = "Fay", rho = 0.3, mse = TRUE), "y ~ a + b", "linear")
add("fay_mean", rep_design("fay", type = "Fay", rho = 0.3, mse = FALSE), "y ~ a + b", "logistic")
scales <- golden("replicate_weights", "scales")$scale
add("jkn", rep_design("jkn", type = "JKn", scale = 1, rscales = scales, mse = TRUE), "y ~ a + b")

# the jackknife of a design, whose replicates svysynth makes itself
jackknife <- as.svrepdesign(svydesign(ids = ~psu, weights = ~w, data = golden("calibration", "apiclus1")), type = "JK1", mse = TRUE)
add("jackknife", jackknife, "y ~ a + b")
add("jackknife", jackknife, "y > 650 ~ a + b", "logistic")

# three files, combined as multiple imputations
library(mitools)
set.seed(20261120)
files <- lapply(1:3, function(number) {
  data <- golden("answers", "apistrat")
  noise <- matrix(rnorm(2 * nrow(data)), ncol = 2)
  file <- with(data, data.frame(a, s, stratum, y = round(y + 40 * noise[, 1], 1), weight = round(w * exp(0.1 * noise[, 2]), 3)))
  write_numbers(file, paste0("file-", number, ".csv"))
  svydesign(ids = ~1, strata = ~stratum, weights = ~weight, data = file)
})
combined <- list()
for (case in list(c("y ~ s + a", "linear"), c("log(y) ~ s * a", "linear"), c("y > 650 ~ s + a", "logistic"))) {
  formula <- as.formula(sub("(y > 650)", "as.numeric(\\1)", case[1]))
  kind <- if (case[2] == "linear") gaussian() else quasibinomial()
  control <- glm.control(epsilon = 1e-16, maxit = 100)
  fit <- MIcombine(lapply(files, function(file) do.call(svyglm, list(formula, file, family = kind, control = control))))
  combined[[length(combined) + 1]] <- data.frame(
    formula = case[1], family = case[2], term = names(coef(fit)), estimate = unname(coef(fit)), se = unname(SE(fit)),
    df = unname(fit$df)
  )
}
write_numbers(do.call(rbind, combined), "combined.csv", quote = TRUE)

options(survey.lonely.psu = "fail")
write_numbers(do.call(rbind, found), "values.csv", quote = TRUE)
versions <- paste(c("survey", "mitools"), sapply(c("survey", "mitools"), function(name) paste(packageVersion(name))))
writeLines(c(R.version.string, versions), file.path(here, "versions.txt"))
