# Golden values for tables from calibrated weights, from R's `survey` package (`postStratify`, `calibrate`, `rake`).
#
#   Rscript tests/golden/calibration/make.R
#
# reads designs of ../survey, ../domains, ../stages and ../replicate_weights and surveys that come with the package (apiclus1,
# apistrat), and writes, next to this script,
#   apiclus1.csv, apistrat.csv  the records of these two: the columns used
#   totals.csv                  the totals of each case, a row for each level (or combination of levels) of a margin
#   values.csv                  estimate and standard error of every cell, margin and total of a table, of all records
#                               and of a domain, and the degrees of freedom of the design, before calibration: R recomputes
#                               them for replicates after `postStratify`, but not after raking
#   raked.csv                   counts by R's `rake`, whose estimates are those of `calibrate` with calfun = "raking"
#   versions.txt                the versions of R and of survey that did so
# The tests read these files; they never call R. Numbers have 17 significant digits.

source(file.path(dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE))), "..", "tables.R"))
options(survey.lonely.psu = "fail", survey.adjust.domain.lonely = FALSE, survey.ultimate.cluster = TRUE)
data(api)
schools <- function(data) data.frame(
  y = data$api00, w = data$pw, fpc = data$fpc, a = as.character(data$stype), b = as.character(data$awards)
)
write_numbers(cbind(schools(apiclus1), psu = apiclus1$dnum), "apiclus1.csv")
write_numbers(cbind(schools(apistrat), stratum = as.character(apistrat$stype)), "apistrat.csv")

place <- function(name) {
  places <- file.path(here, c(".", "../survey", "../domains"), paste0(name, ".csv"))
  places[file.exists(places)][1]
}
read <- function(name) {
  data <- read.csv(place(name), colClasses = c(a = "character", b = "character"))
  has <- function(column) column %in% names(data)
  list(data = data, design = svydesign(
    ids = if (has("psu")) ~psu else ~1, strata = if (has("stratum")) ~stratum, fpc = if (has("fpc")) ~fpc,
    weights = ~w, data = data, nest = has("stratum")
  ))
}
# Two and three stages of sampling, with the finite population correction of each.
staged <- function(name) {
  data <- read.csv(file.path(here, "..", "stages", paste0(name, ".csv")), colClasses = c(a = "character", b = "character"))
  three <- "fpc3" %in% names(data)
  data$record <- seq_len(nrow(data))
  list(data = data, design = svydesign(
    ids = if (three) ~psu + ssu + record else ~psu + ssu, strata = if (three) ~stratum + psu + ssu,
    fpc = if (three) ~fpc1 + fpc2 + fpc3 else ~fpc1 + fpc2, weights = ~w, data = data, nest = TRUE
  ))
}
replicated <- function(name) {
  data <- read.csv(file.path(here, "..", "replicate_weights", paste0(name, ".csv")), colClasses = c(a = "character", b = "character"))
  weights <- as.matrix(data[grep("^r[0-9]+$", names(data))])
  arguments <- list(repweights = weights, weights = data$w, data = data[c("y", "a", "b")], combined.weights = TRUE, mse = TRUE)
  arguments <- c(arguments, switch(name,
    jk1 = list(type = "JK1", scale = 14 / 15), fay = list(type = "Fay", rho = 0.3), bootstrap = list(type = "bootstrap")
  ))
  list(data = data, design = suppressWarnings(do.call(svrepdesign, arguments)))
}

# Totals that differ from the estimates of the file: by 1 to 25 per cent, from level to level.
target <- function(design, variables) {
  cells <- as.data.frame(svytable(as.formula(paste("~", paste(variables, collapse = "+"))), design), stringsAsFactors = FALSE)
  cells <- cells[cells$Freq > 0, ]
  cells$Freq <- round(cells$Freq * (1 + 0.12 * sin(3 * seq_len(nrow(cells)))), 2)
  cells
}
# Margins that add up to the same: those of a table of totals by a and b.
margin <- function(cells, variable) {
  found <- aggregate(cells["Freq"], cells[variable], sum)
  found$Freq <- round(found$Freq, 2)
  found
}

post_stratified <- function(design, by) {
  cells <- target(design, by)
  list(design = postStratify(design, as.formula(paste("~", paste(by, collapse = "+"))), cells), margins = list(cells))
}
calibrated <- function(design, method) {
  cells <- target(design, c("a", "b"))
  margins <- list(margin(cells, "a"), margin(cells, "b"))
  margins[[2]]$Freq[1] <- margins[[2]]$Freq[1] + sum(margins[[1]]$Freq) - sum(margins[[2]]$Freq)
  contrast <- function(m) setNames(m$Freq[-1], paste0(names(m)[1], m[[1]][-1]))
  population <- c("(Intercept)" = sum(margins[[1]]$Freq), contrast(margins[[1]]), contrast(margins[[2]]))
  calfun <- if (method == "rake") "raking" else "linear"
  settings <- list(design, ~ a + b, population, calfun = calfun, epsilon = 1e-14, maxit = 200)
  with_replicates <- inherits(design, "svyrep.design")
  list(
    design = do.call(calibrate, c(settings, if (with_replicates) list(compress = FALSE))),
    margins = margins, raked = if (method == "rake" && !with_replicates) suppressWarnings(
      rake(design, list(~a, ~b), margins, control = list(maxit = 400, epsilon = 1e-12)))
  )
}
apply_method <- function(design, method) switch(method,
  "post-stratify a" = post_stratified(design, "a"), "post-stratify a b" = post_stratified(design, c("a", "b")),
  rake = calibrated(design, "rake"), linear = calibrated(design, "linear")
)

values <- list()
totals <- list()
raked <- list()
add <- function(name, found, method, domains) {
  result <- apply_method(found$design, method)
  data <- found$data
  for (number in seq_along(result$margins)) {
    m <- result$margins[[number]]
    totals[[length(totals) + 1]] <<- data.frame(
      design = name, method = method, margin = number, a = if ("a" %in% names(m)) m$a else "",
      b = if ("b" %in% names(m)) m$b else "", total = m$Freq
    )
  }
  for (position in seq_along(domains)) {
    text <- names(domains)[position]
    domain <- domains[[position]](data)
    values[[length(values) + 1]] <<- data.frame(
      design = name, method = method, domain = text,
      subset(table_of(result$design, data, domain, by = c("b", "a")), select = -n),
      df = degf(if (text == "") found$design else subset(found$design, domain))
    )
  }
  if (!is.null(result$raked)) raked[[length(raked) + 1]] <<- counts_of(name, data, weights(result$raked, "sampling"))
}
counts_of <- function(name, data, weights) {
  cells <- expand.grid(b = c("All", sort(unique(data$b))), a = c("All", sort(unique(data$a))), stringsAsFactors = FALSE)
  inside <- function(a, b) (a == "All" | data$a == a) & (b == "All" | data$b == b)
  data.frame(design = name, cells[c("a", "b")], estimate = mapply(function(a, b) sum(weights[inside(a, b)]), cells$a, cells$b))
}
methods <- c("post-stratify a", "post-stratify a b", "rake", "linear")
everybody <- function(data) rep(TRUE, nrow(data))
above <- function(data) data$y > 650
heavy <- function(data) data$w > 20 & data$b == "b1"
for (name in c("apiclus1", "apistrat", "apiclus2"))
  for (method in methods) add(name, read(name), method, setNames(list(everybody, above), c("", "y > 650")))
for (name in c("simple", "stratified", "stratified_clusters", "stratified_clusters_fpc", "fpc_fractions"))
  for (method in methods) add(name, read(name), method, setNames(list(everybody, heavy), c("", "w > 20 and b = 'b1'")))
options(survey.ultimate.cluster = FALSE)
for (name in c("apiclus2", "three_stages"))
  for (method in methods) add(paste("stages", name), staged(name), method, setNames(list(everybody, above), c("", "y > 650")))
for (name in c("jk1", "bootstrap"))
  for (method in c("post-stratify a", "rake", "linear")) add(name, replicated(name), method, setNames(list(everybody), ""))

write_numbers(do.call(rbind, values), "values.csv")
write_numbers(do.call(rbind, totals), "totals.csv")
write_numbers(do.call(rbind, raked), "raked.csv")
write_versions()
