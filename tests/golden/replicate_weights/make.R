# Golden values for tables from replicate weights that come with a file, from R's `survey` package (`svrepdesign`).
#
#   Rscript tests/golden/replicate_weights/make.R
#
# writes, next to this script,
#   <design>.csv   the records of each design: y, w, a, b and the combined replicate weights r1, r2 …
#   values.csv     estimate, standard error (mse = TRUE and FALSE) and degrees of freedom of every row of a table, of all
#                  records and of a domain
#   scales.csv     the scale of each replicate of the design of type JKn
#   versions.txt   the versions of R and of survey that did so
# Records and weights are those of surveys that come with the package (apistrat, apiclus1, nhanes), whose replicates
# `as.svrepdesign` makes; for successive differences, whose weights R cannot make, factors 1.7, 1 and 0.3 are drawn.

source(file.path(dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE))), "..", "tables.R"))
set.seed(20261119)
data(api)
data(nhanes)

people <- na.omit(data.frame(
  y = nhanes$HI_CHOL, w = nhanes$WTMEC2YR, psu = nhanes$SDMVPSU, stratum = nhanes$SDMVSTRA,
  a = paste0("s", nhanes$RIAGENDR), b = paste0("r", nhanes$race)
))
people <- people[sample(nrow(people), 1500), ]
people <- people[people$stratum %in% names(which(tapply(people$psu, people$stratum, function(x) length(unique(x))) == 2)), ]
schools <- function(data) transform(data, y = api00, w = pw, a = as.character(stype), b = as.character(awards))
nhanes_design <- svydesign(ids = ~psu, strata = ~stratum, weights = ~w, data = people, nest = TRUE)
strat <- svydesign(ids = ~1, strata = ~stype, weights = ~w, data = schools(apistrat)[seq(1, 200, 4), ])
clus <- svydesign(ids = ~dnum, weights = ~w, data = schools(apiclus1))

made <- list(
  brr = list(as.svrepdesign(nhanes_design, type = "BRR"), "BRR"),
  fay = list(as.svrepdesign(nhanes_design, type = "Fay", fay.rho = 0.3), "Fay"),
  jk1 = list(as.svrepdesign(clus, type = "JK1"), "JK1"),
  jkn = list(as.svrepdesign(strat, type = "JKn"), "JKn"),
  bootstrap = list(as.svrepdesign(clus, type = "subbootstrap", replicates = 40), "bootstrap")
)

records <- function(design) {
  weights <- as.data.frame(weights(design, "analysis"))
  names(weights) <- paste0("r", seq_along(weights))
  cbind(design$variables[c("y", "w", "a", "b")], weights)
}
files <- lapply(made, function(one) records(one[[1]]))
acs <- schools(apistrat)[c("y", "w", "a", "b")]
factors <- matrix(sample(c(1.7, 1, 0.3), nrow(acs) * 80, replace = TRUE, prob = c(1, 2, 1)), nrow(acs))
factors[3, 5] <- -0.1  # weights of the American Community Survey may be negative
differences <- as.data.frame(acs$w * factors)
names(differences) <- paste0("r", 1:80)
files[["successive-difference"]] <- cbind(acs, differences)

design_of <- function(name, data, mse) {
  type <- if (name %in% names(made)) made[[name]][[2]] else "ACS"
  arguments <- list(
    repweights = data[grep("^r[0-9]+$", names(data))], weights = data$w, data = data[c("y", "a", "b")], type = type,
    combined.weights = TRUE, mse = mse
  )
  if (name == "fay") arguments$rho <- 0.3
  if (name == "jk1") arguments$scale <- made$jk1[[1]]$scale
  if (name == "jkn") arguments <- c(arguments, list(scale = 1, rscales = made$jkn[[1]]$rscales))
  suppressWarnings(do.call(svrepdesign, arguments))
}

values <- list()
for (name in names(files)) {
  write_numbers(files[[name]], paste0(name, ".csv"))
  data <- read.csv(file.path(here, paste0(name, ".csv")))
  for (mse in c(TRUE, FALSE)) {
    design <- design_of(name, data, mse)
    for (text in c("", "y > 650", "y > 0 and w > 20000")) {
      domain <- switch(text, "y > 650" = data$y > 650, "y > 0 and w > 20000" = data$y > 0 & data$w > 20000, rep(TRUE, nrow(data)))
      if (!any(domain)) next
      table <- subset(table_of(design, data, domain, by = c("b", "a")), select = -n)
      values[[length(values) + 1]] <- data.frame(
        design = name, mse = mse, domain = text, table, df = degf(subset(design, domain))
      )
    }
  }
}
write_numbers(do.call(rbind, values), "values.csv")
write_numbers(data.frame(scale = made$jkn[[1]]$scale * made$jkn[[1]]$rscales), "scales.csv")
write_versions()
