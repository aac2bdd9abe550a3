# Writes real survey files from R packages as CSV, for bench/real_files.py. Argument: the folder to write to.
folder <- commandArgs(trailingOnly = TRUE)[1]
write <- function(frame, name) write.csv(frame, file.path(folder, name), row.names = FALSE, na = "")
suppressMessages(library(survey))
data(api)
data(nhanes)
for (name in c("apistrat", "apiclus1", "apipop")) write(get(name), paste0(name, ".csv"))
write(nhanes, "nhanes.csv")
if (suppressWarnings(suppressMessages(require(laeken)))) {
  data(eusilc)
  data(ses)
  write(eusilc, "eusilc.csv")
  write(ses, "ses.csv")
}
