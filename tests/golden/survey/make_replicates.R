# Golden values for replicate variances, from R's `survey` package.
#
#   Rscript tests/golden/survey/make_replicates.R
#
# writes, in the folder `replicates` next to this script,
#   <design>.csv            the records, as `make.R` does
#   <design>_<method>.csv   the factors that multiply the weights of each PSU in each replicate; a PSU is named by one of
#                           its records, counted from 0
#   scales.csv              the scale of each replicate's squared deviation
#   values.csv              estimate and standard error of every cell, margin and total of the table by (a, b)
# The factors of the jackknife follow from the design and are left out.

file <- sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE))
source(file.path(dirname(file), "make.R"))
set.seed(20250612, kind = "Mersenne-Twister", normal.kind = "Inversion", sample.kind = "Rejection")
dir.create(file.path(here, "replicates"), showWarnings = FALSE)

# Enough units, or clusters that are large enough, for no replicate to empty a cell: `survey` would drop such a replicate.
designs <- list(
  simple = without(in_strata(66), "stratum"),
  simple_fpc = transform(without(in_strata(66), "stratum"), fpc = 150),
  clusters = without(in_clusters(12, 8:11), "stratum"),
  # even and odd numbers of units
  stratified = in_strata(c(16, 21, 20, 15)),
  stratified_fpc = with_fpc(in_strata(c(16, 21, 20, 15)), c(40, 31, 500, 60)),
  stratified_clusters = in_clusters(c(6, 5, 7), 8:11),
  stratified_clusters_fpc = with_fpc(in_clusters(c(6, 5, 7), 8:11), c(8, 25, 60)),
  # two clusters in every stratum, for balanced half-samples
  pairs = in_clusters(rep(2, 9), 7:9)
)
designs <- lapply(designs, shuffled)

# Our names of the methods, and those of `survey`.
methods <- list(
  simple = c(preston = "mrbbootstrap", bootstrap = "subbootstrap", jackknife = "JK1"),
  simple_fpc = c(preston = "mrbbootstrap", jackknife = "JK1"),
  clusters = c(jackknife = "JK1"),
  stratified = c(preston = "mrbbootstrap", bootstrap = "subbootstrap", jackknife = "JKn"),
  stratified_fpc = c(preston = "mrbbootstrap", jackknife = "JKn"),
  stratified_clusters = c(preston = "mrbbootstrap", bootstrap = "subbootstrap", jackknife = "JKn"),
  stratified_clusters_fpc = c(preston = "mrbbootstrap", jackknife = "JKn"),
  pairs = c(brr = "BRR", jackknife = "JKn")
)

# Deviations are from the estimate of the full sample (mse = TRUE). `survey` warns that a design without finite
# population correction is taken to be drawn with replacement, which is meant.
replicate_design <- function(design, type) {
  settings <- if (grepl("bootstrap", type)) list(replicates = 20)
  suppressWarnings(
    do.call(as.svrepdesign, c(list(design, type = type, mse = TRUE, compress = FALSE), settings))
  )
}

# The factors of one record of each PSU.
factors_of <- function(design, replicated) {
  record <- which(!duplicated(design$cluster[, 1]))
  factors <- unclass(replicated$repweights)[record, ]
  colnames(factors) <- paste0("r", seq_len(ncol(factors)))
  data.frame(record = record - 1, factors)
}

make_replicates <- function() {
  options(warn = 2) # a dropped replicate is an error
  values <- list()
  scales <- list()
  for (name in names(designs)) {
    write_numbers(designs[[name]], file.path("replicates", paste0(name, ".csv")))
    design <- as_design(designs[[name]])
    for (method in names(methods[[name]])) {
      replicated <- replicate_design(design, methods[[name]][method])
      key <- paste(name, method, sep = "_")
      values[[key]] <- data.frame(design = name, method = method, table_of(replicated))
      if (method == "jackknife") next
      write_numbers(factors_of(design, replicated), file.path("replicates", paste0(key, ".csv")))
      scales[[key]] <- data.frame(design = name, method = method, scale = replicated$scale * replicated$rscales)
    }
  }
  write_numbers(do.call(rbind, values), file.path("replicates", "values.csv"))
  write_numbers(do.call(rbind, scales), file.path("replicates", "scales.csv"))
}

make_replicates()
