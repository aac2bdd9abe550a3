# Golden values for quantiles with Woodruff intervals and for shares above a threshold, from R's `survey` package
# (`svyquantile` and `svymean(~I(y > threshold))`).
#
#   Rscript tests/golden/quantiles/make.R
#
# reads designs of ../survey, ../domains, ../calibration, ../stages and ../replicate_weights, and writes, next to this script,
#   values.csv     estimate, standard error and interval of every cell, margin and total of a table, of all records and of a
#                  domain, for rules and interval types; `own` says whether `svyquantile` gives them
#   versions.txt   the versions of R and of survey that did so
# The tests read these files; they never call R. Numbers have 17 significant digits.
#
# `own` is 0 where `svyquantile` gives the same numbers. It is 1 where a share is below that of the smallest value: there
# survey 4.1.1 gives the second smallest value (`qs` starts at the first record and takes the next one), and by its
# definition the rule gives the smallest. It is 2 where the distribution function is equal to a share, and R's sums are
# not, by rounding.
#
# Degrees of freedom are those of the design, or of the domain, in every cell: `df` is passed. The interval `beta` has no
# such argument for all of its parts, so it is for the whole of a table only, and not for domains of calibrated weights,
# where R counts the records outside too.

suppressPackageStartupMessages(library(survey))
options(survey.lonely.psu = "fail", survey.adjust.domain.lonely = FALSE)
here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)))
place <- function(name) {
  places <- file.path(here, "..", c("survey", "domains", "calibration"), paste0(name, ".csv"))
  places[file.exists(places)][1]
}
read <- function(path) read.csv(path, colClasses = c(a = "character", b = "character"))
linear <- function(name) {
  data <- read(place(name))
  has <- function(column) column %in% names(data)
  svydesign(
    ids = if (has("psu")) ~psu else ~1, strata = if (has("stratum")) ~stratum, fpc = if (has("fpc")) ~fpc,
    weights = ~w, data = data, nest = has("stratum")
  )
}
staged <- function() {
  data <- read(file.path(here, "..", "stages", "apiclus2.csv"))
  svydesign(ids = ~psu + ssu, fpc = ~fpc1 + fpc2, weights = ~w, data = data, nest = TRUE)
}
replicated <- function(name, mse) {
  data <- read(file.path(here, "..", "replicate_weights", paste0(name, ".csv")))
  arguments <- list(
    repweights = as.matrix(data[grep("^r[0-9]+$", names(data))]), weights = data$w, data = data[c("y", "a", "b")],
    combined.weights = TRUE, mse = mse, type = switch(name, jk1 = "JK1", jkn = "JKn", brr = "BRR", fay = "Fay", bootstrap = "bootstrap")
  )
  if (name == "fay") arguments$rho <- 0.3
  if (name == "jk1") arguments$scale <- 14 / 15
  if (name == "jkn") arguments <- c(arguments, list(scale = 1, rscales = read.csv(file.path(here, "..", "replicate_weights", "scales.csv"))$scale))
  suppressWarnings(do.call(svrepdesign, arguments))
}
# The first totals of ../calibration for this design.
post_stratified <- function(name) {
  totals <- read.csv(file.path(here, "..", "calibration", "totals.csv"), colClasses = c(a = "character", b = "character"))
  totals <- totals[totals$design == name & totals$method == "post-stratify a", ]
  postStratify(linear(name), ~a, data.frame(a = totals$a, Freq = totals$total))
}

# The rules by their definition. Shares that are equal up to rounding count as equal.
ROUNDING <- 1e-12
rule <- function(name) function(x, w, p) {
  x <- x[w > 0]
  w <- w[w > 0]
  values <- sort(unique(x))
  cumulated <- cumsum(as.vector(tapply(w, x, sum))) / sum(w)
  place <- min(which(cumulated >= p - ROUNDING), length(values))
  equal <- abs(cumulated[place] - p) <= ROUNDING && place < length(values)
  if (name == "school" && equal) mean(values[place + 0:1]) else values[place]
}
original <- function(name) function(x, w, p) getFromNamespace(paste0("qrule_", name), "survey")(x, w, p)
# Why R's own function gives another value for this share.
reason <- function(x, w, p) {
  cumulated <- cumsum(tapply(w, x, sum)) / sum(w)
  if (p < min(cumulated[cumulated > 0]) - ROUNDING) "below" else if (any(abs(cumulated - p) <= ROUNDING)) "equal" else "none"
}

quantiles <- function(design, p, name, interval, df) {
  w <- weights(design, "sampling")
  y <- design$variables$y
  asked <- p
  one <- function(q) {
    noted <- function(x, w, p) {
      asked <<- c(asked, p)
      q(x, w, p)
    }
    estimate <- q(y, w, p)
    # not svyquantile itself: for replicate weights, survey 4.1.1 ignores the type of the interval
    ends <- survey:::woodruffCI(y, estimate, p, design, noted, 0.05, df, method = interval)
    reached <- sum(w[y <= estimate]) / sum(w)
    if (interval != "mean" && reached > 1 - ROUNDING) ends <- c(NaN, NaN)  # 1 has no logit; R's share may be 1 - 1e-16
    # where a cell is empty in some replicate R leaves the replicate out
    if (inherits(design, "svyrep.design") && any(colSums(weights(design, "analysis")) == 0)) ends <- c(NaN, NaN)
    c(estimate, diff(ends) / (2 * if (is.finite(df)) qt(0.975, df) else qnorm(0.975)), ends)
  }
  own <- unname(one(original(name)))
  if (interval == "mean" && !inherits(design, "svyrep.design")) {
    whole <- svyquantile(~y, design, p, qrule = name, df = df)$y
    stopifnot(isTRUE(all.equal(unname(whole[1, c(1, 4, 2, 3)]), own, tolerance = 1e-14, check.attributes = FALSE)))
  }
  found <- unname(one(rule(name)))
  if (isTRUE(all.equal(found, own, tolerance = 1e-14))) return(c(found, 0))
  reasons <- vapply(asked, function(share) reason(y, w, share), "")
  stopifnot(any(reasons != "none"))
  c(found, if ("equal" %in% reasons) 2 else 1)
}

rows <- function(name, design, thresholds) {
  data <- design$variables
  found <- list()
  domains <- list(TRUE, data$a != sort(unique(data$a))[1])
  names(domains) <- c("", paste0("a <> '", sort(unique(data$a))[1], "'"))
  for (number in seq_along(domains)) {
    text <- names(domains)[number]
    domain <- rep_len(domains[[number]], nrow(data))
    df <- degf(if (text == "") design else subset(design, domain))
    levels <- lapply(data[c("a", "b")], function(column) c("All", sort(unique(as.character(column)))))
    cells <- expand.grid(levels, stringsAsFactors = FALSE)
    for (row in seq_len(nrow(cells))) {
      inside <- (cells$a[row] == "All" | data$a == cells$a[row]) & (cells$b[row] == "All" | data$b == cells$b[row])
      whole <- cells$a[row] == "All" && cells$b[row] == "All"
      if (!any(inside & domain)) next
      own <- if (whole && text == "") design else subset(design, inside & domain)
      add <- function(statistic, rule, interval, values) found[[length(found) + 1]] <<- data.frame(
        design = name, domain = text, statistic = statistic, rule = rule, interval = interval, a = cells$a[row],
        b = cells$b[row], estimate = values[1], se = values[2], lower = values[3], upper = values[4], own = values[5], df = df
      )
      for (p in c(0.1, 0.5, 0.75)) {
        label <- if (p == 0.5) "median" else sprintf("quantile(%s)", format(p))
        for (interval in c("mean", "xlogit", if (whole && !(text != "" && grepl("^post", name))) "beta")) add(label, "math", interval, quantiles(own, p, "math", interval, df))
        add(label, "school", "mean", quantiles(own, p, "school", "mean", df))
      }
      for (threshold in thresholds) {
        share <- svymean(~I(as.numeric(y > threshold)), own)
        if (inherits(own, "svyrep.design") && any(colSums(weights(own, "analysis")) == 0)) next
        half <- c(SE(share)) * if (is.finite(df)) qt(0.975, df) else qnorm(0.975)
        add(sprintf("share(> %s)", format(threshold)), "", "", c(coef(share), SE(share), coef(share) + c(-1, 1) * half, 0))
      }
    }
  }
  do.call(rbind, found)
}

values <- list()
for (name in c("simple_fpc", "clusters", "stratified", "stratified_clusters", "stratified_fpc", "sparse_cells", "constant_cells")) {
  values[[name]] <- rows(name, linear(name), 1200)
}
for (name in c("apiclus1", "apistrat", "apiclus2")) values[[name]] <- rows(name, linear(name), c(650, 800))
values$nhanes <- rows("nhanes", linear("nhanes"), 0.5)
values$stages <- rows("stages apiclus2", staged(), 650)
for (name in c("apiclus1", "apistrat")) values[[paste("post", name)]] <- rows(paste("post-stratify", name), post_stratified(name), 650)
for (name in c("jk1", "jkn", "brr", "fay", "bootstrap")) {
  for (mse in c(TRUE, FALSE)) {
    values[[paste(name, mse)]] <- rows(paste("replicates", name, tolower(mse)), replicated(name, mse), if (name %in% c("brr", "fay")) 0.5 else 650)
  }
}
values <- do.call(rbind, values)
for (column in c("estimate", "se", "lower", "upper")) {
  values[[column]] <- ifelse(is.nan(values[[column]]) | is.na(values[[column]]), "", sprintf("%.17g", values[[column]]))
}
write.csv(values, file.path(here, "values.csv"), row.names = FALSE, quote = FALSE)
writeLines(c(R.version.string, paste("survey", packageVersion("survey"))), file.path(here, "versions.txt"))
