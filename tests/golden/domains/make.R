# Golden values for tables of a domain, from R's `survey` package: `subset` of a design, which remembers the whole.
#
#   Rscript tests/golden/domains/make.R
#
# reads the designs of ../survey and two surveys that come with the package, apiclus2 (two stages, of which the first
# counts here) and nhanes, and writes, next to this script,
#   apiclus2.csv, nhanes.csv   the records of these two: the columns used
#   values.csv                 estimate and standard error of every cell, margin and total of a table, in each domain,
#                              and the degrees of freedom of the domain
#   versions.txt               the versions of R and of survey that did so
# The tests read these files; they never call R. Numbers have 17 significant digits.

source(file.path(dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE))), "..", "tables.R"))
options(survey.lonely.psu = "fail", survey.adjust.domain.lonely = FALSE, survey.ultimate.cluster = TRUE)

rows <- function(name, design, data, text, domain) data.frame(
  design = name, domain = text, table_of(design, data, domain), df = degf(subset(design, domain))
)

values <- list()
names_of <- c("simple", "simple_fpc", "clusters", "stratified", "stratified_clusters", "stratified_fpc",
  "stratified_clusters_fpc", "fpc_fractions", "sparse_cells_clusters", "large_offset_clusters")
for (name in names_of) {
  data <- read.csv(file.path(here, "..", "survey", paste0(name, ".csv")))
  has <- function(column) column %in% names(data)
  design <- svydesign(
    ids = if (has("psu")) ~psu else ~1, strata = if (has("stratum")) ~stratum, fpc = if (has("fpc")) ~fpc,
    weights = ~w, data = data, nest = has("stratum")
  )
  domains <- list("a <> 'a3'" = data$a != "a3", "w > 20 and b = 'b1'" = data$w > 20 & data$b == "b1")
  for (text in names(domains)) values[[length(values) + 1]] <- rows(name, design, data, text, domains[[text]])
}

data(api)
clusters <- data.frame(
  y = apiclus2$api00, w = apiclus2$pw, psu = apiclus2$dnum, fpc = apiclus2$fpc1,
  a = as.character(apiclus2$stype), b = as.character(apiclus2$awards), enroll = apiclus2$enroll
)
clusters <- clusters[!is.na(clusters$enroll), ]
write.csv(format(clusters, digits = 17, trim = TRUE), file.path(here, "apiclus2.csv"), row.names = FALSE, quote = FALSE)
clusters <- read.csv(file.path(here, "apiclus2.csv"))
design <- svydesign(ids = ~psu, fpc = ~fpc, weights = ~w, data = clusters)
values[[length(values) + 1]] <- rows("apiclus2", design, clusters, "enroll > 400", clusters$enroll > 400)

data(nhanes)
people <- na.omit(data.frame(
  y = nhanes$HI_CHOL, w = nhanes$WTMEC2YR, psu = nhanes$SDMVPSU, stratum = nhanes$SDMVSTRA, race = nhanes$race,
  a = paste0("s", nhanes$RIAGENDR), b = as.character(nhanes$agecat)
))
people$b <- gsub("[^0-9A-Za-z]+", "_", people$b)
write.csv(format(people, digits = 17, trim = TRUE), file.path(here, "nhanes.csv"), row.names = FALSE, quote = FALSE)
people <- read.csv(file.path(here, "nhanes.csv"))
design <- svydesign(ids = ~psu, strata = ~stratum, weights = ~w, data = people, nest = TRUE)
values[[length(values) + 1]] <- rows("nhanes", design, people, "race = 2 and b <> '_0_19_'", people$race == 2 & people$b != "_0_19_")

write_numbers(do.call(rbind, values), "values.csv", quote = 2)
write_versions()
