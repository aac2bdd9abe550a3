# Golden values for tables of several stages of sampling, from R's `survey` package.
#
#   Rscript tests/golden/stages/make.R
#
# reads two surveys of two stages that come with the package, apiclus2 and mu284, makes three designs of its own, takes
# those with strata of one unit from ../survey, and writes, next to this script,
#   <design>.csv   the records of each design
#   values.csv     estimate and standard error of every cell, margin and total of the table by (a, b), in each domain,
#                  and the degrees of freedom
#   calibrated.csv the same for two stages with weights calibrated to the totals of a and b, without a domain
#   versions.txt   the versions of R and of survey that did so
# The tests read these files; they never call R. Numbers have 17 significant digits.

source(file.path(dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE))), "..", "tables.R"))
options(survey.lonely.psu = "fail", survey.adjust.domain.lonely = FALSE, survey.ultimate.cluster = FALSE)
set.seed(20250702, kind = "Mersenne-Twister", normal.kind = "Inversion", sample.kind = "Rejection")

# --- records ---

data(api)
schools <- data.frame(
  y = apiclus2$api00, w = apiclus2$pw, psu = apiclus2$dnum, ssu = apiclus2$snum, fpc1 = apiclus2$fpc1,
  fpc2 = apiclus2$fpc2, a = as.character(apiclus2$stype), b = as.character(apiclus2$awards), enroll = apiclus2$enroll
)
schools <- schools[!is.na(schools$enroll), ]

data(mu284)
towns <- data.frame(
  y = mu284$y1, w = (mu284$n1 / 5) * (mu284$n2 / 3), psu = mu284$id1, ssu = mu284$id2, fpc1 = mu284$n1,
  fpc2 = mu284$n2, a = paste0("a", mu284$id1 %% 2), b = paste0("b", mu284$id2)
)

# Three stages. PSUs are drawn in the strata, SSUs in each PSU, or in each of its `parts` strata of the second stage,
# and records in each SSU. The ids of SSUs start again in every PSU, and those of PSUs in every stratum.
three_stages <- function(drawn, population, parts = 1, least = 2) {
  rows <- list()
  for (s in seq_along(drawn)) for (p in seq_len(drawn[s])) {
    of_psu <- rnorm(1, 0, 0.3)
    for (part in seq_len(parts)) {
      n2 <- if (parts > 1 && part == parts) max(least, 2) else sample(least:4, 1)
      fpc2 <- n2 + sample(1:6, 1)
      for (q in seq_len(n2)) {
        of_ssu <- of_psu + rnorm(1, 0, 0.3)
        n3 <- sample(2:5, 1)
        rows[[length(rows) + 1]] <- data.frame(
          y = round(exp(7 + of_ssu + rnorm(n3, 0, 0.4)), 2), w = round(runif(n3, 2, 60), 3),
          stratum = paste0("s", s), psu = p, part = paste0("t", part), ssu = 10 * part + q, fpc1 = population[s],
          fpc2 = fpc2, fpc3 = n3 + sample(1:8, 1), n1 = drawn[s], n2 = n2, n3 = n3
        )
      }
    }
  }
  data <- do.call(rbind, rows)
  data$a <- sample(c("a1", "a2", "a3"), nrow(data), replace = TRUE)
  data$b <- sample(c("b1", "b2"), nrow(data), replace = TRUE)
  data <- data[sample(nrow(data)), ]
  rownames(data) <- NULL
  data
}
sizes <- c("n1", "n2", "n3")
without <- function(data, columns) data[!names(data) %in% columns]
as_fractions <- function(data) {
  for (stage in 1:3) data[[paste0("fpc", stage)]] <- data[[sizes[stage]]] / data[[paste0("fpc", stage)]]
  data
}

stages <- three_stages(c(4, 3, 5), c(10, 8, 21))
designs <- list(
  apiclus2 = schools,
  mu284 = towns,
  three_stages = without(stages, c(sizes, "part")),
  fractions = without(as_fractions(stages), c(sizes, "part")),
  strata_by_stage = without(three_stages(c(3, 4), c(9, 11), parts = 2), sizes),
  # some SSUs are the only ones drawn in their part of the PSU, and one PSU is the only one of its stratum
  lonely_by_stage = without(three_stages(c(3, 1, 4), c(9, 5, 11), parts = 2, least = 1), sizes)
)
others <- c("lonely", "lonely_fpc", "lonely_clusters")
domains <- list(
  apiclus2 = "enroll > 400", three_stages = "a <> 'a3'", strata_by_stage = "w > 20 and b = 'b1'",
  lonely_by_stage = "a <> 'a3'", lonely = "a <> 'a3'", lonely_clusters = "w > 20 and b = 'b1'"
)
policies <- function(name) {
  if (name == "lonely_by_stage") c("certainty", "adjust", "average") else if (name %in% others) "average" else "fail"
}

as_design <- function(data) {
  has <- function(column) column %in% names(data)
  data$record <- seq_len(nrow(data))
  svydesign(
    ids = if (has("fpc3")) ~ psu + ssu + record else if (has("ssu")) ~ psu + ssu else if (has("psu")) ~psu else ~1,
    strata = if (has("part")) ~ stratum + part else if (has("stratum")) ~stratum,
    fpc = if (has("fpc3")) ~ fpc1 + fpc2 + fpc3 else if (has("fpc2")) ~ fpc1 + fpc2 else if (has("fpc")) ~fpc,
    weights = ~w, data = data, nest = has("stratum")
  )
}

# --- estimates ---

rows <- function(name, policy, design, data, text, domain) data.frame(
  design = name, lonely = policy, domain = text, subset(table_of(design, data, domain), select = -n),
  df = degf(subset(design, domain))
)

values <- list()
for (name in c(names(designs), others)) {
  path <- file.path(here, paste0(name, ".csv"))
  if (name %in% names(designs)) write_numbers(designs[[name]], basename(path)) else path <- file.path(here, "..", "survey", basename(path))
  data <- read.csv(path)
  design <- as_design(data)
  for (policy in policies(name)) {
    options(survey.lonely.psu = policy)
    values[[length(values) + 1]] <- rows(name, policy, design, data, "", rep(TRUE, nrow(data)))
    text <- domains[[name]]
    if (is.null(text)) next
    condition <- gsub("<>", "!=", gsub(" and ", " & ", gsub(" = ", " == ", text)))
    values[[length(values) + 1]] <- rows(name, policy, design, data, text, eval(parse(text = condition), data))
  }
  options(survey.lonely.psu = "fail")
}
write_numbers(do.call(rbind, values), "values.csv", quote = 3)

# The weights of the schools, raked to known totals of both columns (those of `apipop`).
data <- read.csv(file.path(here, "apiclus2.csv"))
design <- calibrate(
  as_design(data), list(~a, ~b), list(table(a = apipop$stype), table(b = apipop$awards)),
  calfun = "raking", epsilon = 1e-13, maxit = 1000
)
write_numbers(rows("apiclus2", "fail", design, data, "", rep(TRUE, nrow(data))), "calibrated.csv", quote = 3)
write_versions()
