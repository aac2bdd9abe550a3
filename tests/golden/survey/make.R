# Golden values for the Taylor-linearised tables, from R's `survey` package.
#
#   Rscript tests/golden/survey/make.R
#
# writes, next to this script,
#   <design>.csv   the records of each design: y, w and, where the design has them, stratum, psu, fpc; a and b
#   values.csv     estimate, standard error and degrees of freedom of every cell, margin and total of the table by (a, b)
#   versions.txt   the versions of R and of survey that did so
# The tests read these files; they never call R. Numbers have 17 significant digits, so that a double survives the trip.

suppressPackageStartupMessages(library(survey))
options(survey.lonely.psu = "fail", survey.adjust.domain.lonely = FALSE, survey.ultimate.cluster = FALSE)
set.seed(20250611, kind = "Mersenne-Twister", normal.kind = "Inversion", sample.kind = "Rejection")

here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)))
statistics <- c("count", "total", "mean", "proportion")

# --- records ---

# Records of strata s1, s2 ... with the given numbers of units.
in_strata <- function(sizes) {
  n <- sum(sizes)
  data.frame(
    y = round(exp(rnorm(n, 7, 0.7)), 2),
    w = round(runif(n, 2, 60), 3),
    stratum = rep(paste0("s", seq_along(sizes)), sizes),
    a = sample(c("a1", "a2", "a3"), n, replace = TRUE),
    b = sample(c("b1", "b2"), n, replace = TRUE)
  )
}

# Records of strata with the given numbers of clusters of 2 to 6 units; cluster ids start at 1 again in every stratum.
# Units of a cluster resemble each other, so that ignoring the clusters would show.
in_clusters <- function(clusters, sizes = 2:6) {
  units <- sample(sizes, sum(clusters), replace = TRUE)
  data <- in_strata(tapply(units, rep(seq_along(clusters), clusters), sum))
  data$psu <- rep(sequence(clusters), units)
  data$y <- round(data$y * rep(exp(rnorm(length(units), 0, 0.4)), units), 2)
  data
}

# The same finite population correction for all records of a stratum.
with_fpc <- function(data, fpc) {
  data$fpc <- fpc[match(data$stratum, paste0("s", seq_along(fpc)))]
  data
}

without <- function(data, column) data[names(data) != column]

# Records come in no particular order, as in a real file.
shuffled <- function(data) {
  columns <- intersect(c("y", "w", "stratum", "psu", "fpc", "a", "b"), names(data))
  data <- data[sample(nrow(data)), columns]
  rownames(data) <- NULL
  data
}

designs <- list(
  simple = without(in_strata(40), "stratum"),
  simple_fpc = transform(without(in_strata(40), "stratum"), fpc = 150),
  stratified = in_strata(c(12, 15, 20, 9)),
  clusters = without(in_clusters(14), "stratum"),
  stratified_clusters = in_clusters(c(4, 5, 7)),
  stratified_fpc = with_fpc(in_strata(c(12, 15, 20)), c(40, 31, 500)),
  stratified_clusters_fpc = with_fpc(in_clusters(c(4, 5, 7)), c(6, 25, 60)),
  fpc_fractions = with_fpc(in_strata(c(12, 15, 20)), c(0.3, 0.75, 0.04)),
  # s2 and s4 have a single unit; in lonely_fpc that is all there is of s4
  lonely = in_strata(c(14, 1, 16, 1)),
  lonely_fpc = with_fpc(in_strata(c(14, 1, 16, 1)), c(70, 4, 33, 1)),
  # s2 has a single cluster, of several units
  lonely_clusters = in_clusters(c(5, 1, 6)),
  # s1 and the lonely s3 are fully observed
  exhausted = with_fpc(in_strata(c(8, 12, 1, 15)), c(8, 40, 1, 30)),
  exhausted_clusters = with_fpc(in_clusters(c(4, 5, 1, 6)), c(4, 20, 1, 9)),
  # half of 1e-7 of s1 is unsampled: to survey, less than 1e-7 is nothing
  nearly_exhausted = with_fpc(in_strata(c(10, 14)), c(10 / (1 - 5e-8), 60)),
  sparse_cells = in_strata(c(10, 12, 14)),
  sparse_cells_clusters = in_clusters(c(4, 5, 5)),
  extreme_weights = in_strata(c(14, 16, 18)),
  constant_cells = in_strata(c(14, 16, 18)),
  large_offset = in_strata(c(14, 16, 18)),
  large_offset_clusters = in_clusters(c(4, 5, 7))
)

# Nobody is in cell (a1, b1) and exactly one unit in (a3, b2).
for (name in c("sparse_cells", "sparse_cells_clusters")) {
  data <- designs[[name]]
  data$b[data$a == "a1"] <- "b2"
  data$b[data$a == "a3"] <- "b1"
  data$b[which(data$a == "a3")[2]] <- "b2"
  designs[[name]] <- data
}

# Large enough weights in s1 for even a tiny part of its variance to show.
designs$nearly_exhausted <- within(designs$nearly_exhausted, w[stratum == "s1"] <- 100 * w[stratum == "s1"])

designs$extreme_weights$w <- signif(10^runif(48, -6, 8), 6)

# In cell (a2, b1) everybody has the same y; in (a1, b2) the same y and the same weight.
designs$constant_cells <- within(designs$constant_cells, {
  y[a == "a2" & b == "b1"] <- 1234.56
  y[a == "a1" & b == "b2"] <- 777.7
  w[a == "a1" & b == "b2"] <- 10.1
})

# A spread of a thousand on top of a billion: sums of squares that are not centred keep four digits. (With a spread of 1
# R itself has only seven digits of the standard error of a mean, as it keeps that mean as a double.)
for (name in c("large_offset", "large_offset_clusters")) {
  designs[[name]]$y <- 1e9 + round(1000 * rnorm(nrow(designs[[name]])), 2)
}

designs <- lapply(designs, shuffled)

# What to do about strata with one unit, where there are any.
lonely_policies <- function(name) if (startsWith(name, "lonely")) c("certainty", "adjust") else "fail"

# --- estimates ---

as_design <- function(data) {
  has <- function(column) column %in% names(data)
  svydesign(
    ids = if (has("psu")) ~psu else ~1,
    strata = if (has("stratum")) ~stratum,
    fpc = if (has("fpc")) ~fpc,
    weights = ~w, data = data, nest = has("stratum")
  )
}

# One statistic of a domain. A domain is not a filter: a mean's design is a subset that remembers the whole.
estimate <- function(design, inside, statistic) {
  if (statistic == "mean" && !any(inside)) return(c(NA, NA))
  design <- update(design, inside = as.numeric(inside))
  result <- switch(statistic,
    count = svytotal(~inside, design),
    total = svytotal(~I(inside * y), design),
    mean = svymean(~y, design[inside, ]),
    proportion = svymean(~inside, design)
  )
  c(coef(result), SE(result))
}

# Every cell, margin and total of the table by (a, b).
table_of <- function(design) {
  data <- design$variables
  rows <- expand.grid(
    b = c("All", sort(unique(data$b))), a = c("All", sort(unique(data$a))), statistic = statistics,
    stringsAsFactors = FALSE
  )
  numbers <- mapply(function(a, b, statistic) {
    estimate(design, (a == "All" | data$a == a) & (b == "All" | data$b == b), statistic)
  }, rows$a, rows$b, rows$statistic)
  data.frame(rows[c("statistic", "a", "b")], estimate = numbers[1, ], se = numbers[2, ])
}

# `svyby`, R's own way to a table of means, says the same.
check_against_svyby <- function(design, table) {
  means <- table[table$statistic == "mean" & table$a != "All" & table$b != "All" & !is.na(table$estimate), ]
  by_cell <- svyby(~y, ~ a + b, design, svymean)
  by_cell <- by_cell[order(by_cell$a, by_cell$b), ]
  stopifnot(all.equal(means$estimate, by_cell$y), all.equal(means$se, by_cell$se))
}

# --- files ---

write_numbers <- function(data, file) {
  number <- vapply(data, is.numeric, logical(1))
  data[number] <- lapply(data[number], function(x) ifelse(is.na(x), "", sprintf("%.17g", x)))
  write.csv(data, file.path(here, file), row.names = FALSE, quote = FALSE)
}

make <- function() {
  values <- list()
  for (name in names(designs)) {
    write_numbers(designs[[name]], paste0(name, ".csv"))
    design <- as_design(designs[[name]])
    for (policy in lonely_policies(name)) {
      options(survey.lonely.psu = policy)
      table <- table_of(design)
      check_against_svyby(design, table)
      values[[paste(name, policy)]] <- data.frame(
        design = name, options = paste0("lonely=", policy), table, df = degf(design)
      )
    }
    options(survey.lonely.psu = "fail")
  }
  write_numbers(do.call(rbind, values), "values.csv")
  versions <- c(R.version.string, paste("survey", packageVersion("survey")))
  writeLines(versions, file.path(here, "versions.txt"))
}

# `make_replicates.R` sources this script for its designs and functions.
if (sys.nframe() == 0) make()
