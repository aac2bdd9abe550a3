# Times the tables of `tables.py` with R survey.
#
#   Rscript bench/tables.R FOLDER RECORDS RUNS SECONDS
#
# The folder has the columns as plain numbers. The best of RUNS runs counts; after SECONDS no further run is begun, but
# two are always made. Prints one line of JSON: seconds, standard error of the overall mean, version, and the peak memory
# of the process.

suppressPackageStartupMessages(library(survey))

arguments <- commandArgs(TRUE)
n <- as.integer(arguments[2])
column <- function(name, kind) readBin(file.path(arguments[1], name), kind, n)
d <- data.frame(field = column("field", "integer"), gender = column("gender", "integer"),
                salary = column("salary", "double"), weight = column("weight", "double"))

now <- function() proc.time()[["elapsed"]]
begin <- now()
best <- Inf
runs <- 0
while (runs < 2 || (runs < as.integer(arguments[3]) && now() - begin < as.numeric(arguments[4]))) {
  start <- now()
  design <- svydesign(ids = ~1, strata = ~field, weights = ~weight, data = d)
  counts <- list(svytotal(~interaction(field, gender), design), svytotal(~factor(field), design),
                 svytotal(~factor(gender), design), svytotal(~I(weight > 0), design))
  means <- list(svyby(~salary, ~field + gender, design, svymean), svyby(~salary, ~field, design, svymean),
                svyby(~salary, ~gender, design, svymean), svymean(~salary, design))
  best <- min(best, now() - start)
  runs <- runs + 1
}
peak <- as.numeric(gsub("\\D", "", grep("^VmHWM", readLines("/proc/self/status"), value = TRUE))) / 1024
cat(sprintf('{"seconds": %.4f, "standard_error": "%.9f", "version": "%s", "peak_mib": %.0f}\n', best,
            SE(means[[4]])[1], as.character(packageVersion("survey")), peak))
