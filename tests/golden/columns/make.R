# Golden values for tables by bands, recodes and missing answers, from R: `cut(right = FALSE)`, and the designs of `survey`.
#
#   Rscript tests/golden/columns/make.R
#
# reads two surveys that come with the package, apiclus2 (two stages, of which the first counts here) and nhanes, and
# writes, next to this script,
#   apiclus2.csv, nhanes.csv   the records of these two, with codes for missing answers
#   values.csv                 estimate and standard error of every cell, margin and total of a table
#   versions.txt               the versions of R and of survey that did so
# The tests read these files; they never call R. Numbers have 17 significant digits.

source(file.path(dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE))), "..", "tables.R"))
options(survey.lonely.psu = "fail", survey.ultimate.cluster = TRUE)

banded <- function(x, ends) {
  labels <- c(
    paste("under", ends[1]), paste(head(ends, -1), "to under", tail(ends, -1)), paste(tail(ends, 1), "or more")
  )
  with_missing(cut(x, c(-Inf, ends, Inf), labels = labels, right = FALSE))
}
with_missing <- function(x) ifelse(is.na(x), "not stated", as.character(x))

write <- function(data, name) {
  write.csv(format(data, digits = 17, trim = TRUE), file.path(here, name), row.names = FALSE, quote = FALSE)
}

# schools: pupils in bands, a missing number as -9; the size of classes in bands, a missing one as an empty field
data(api)
schools <- with(apiclus2, data.frame(y = api00, w = pw, psu = dnum, fpc = fpc1, enroll = enroll, classes = acs.k3))
told <- schools
told$enroll[is.na(told$enroll)] <- -9
told$classes <- ifelse(is.na(told$classes), "", as.character(told$classes))
write(told, "apiclus2.csv")
schools$a <- banded(schools$enroll, c(263, 396, 1000))
schools$b <- banded(schools$classes, c(18.5, 20))
design <- svydesign(ids = ~psu, fpc = ~fpc, weights = ~w, data = schools)
values <- list(data.frame(design = "apiclus2", table_of(design, schools)))

# people: high cholesterol (no, yes, not measured), and race (1 to 4) in two groups
data(nhanes)
people <- with(nhanes, data.frame(
  y = as.integer(agecat), w = WTMEC2YR, psu = SDMVPSU, stratum = SDMVSTRA, race = race, cholesterol = HI_CHOL
))
told <- people
told$cholesterol <- ifelse(is.na(told$cholesterol), "98", as.character(told$cholesterol))
write(told, "nhanes.csv")
people$a <- with_missing(c("low", "high")[people$cholesterol + 1])
people$b <- ifelse(people$race == 2, "white", "other")
design <- svydesign(ids = ~psu, strata = ~stratum, weights = ~w, data = people, nest = TRUE)
values[[2]] <- data.frame(design = "nhanes", table_of(design, people))

write_numbers(do.call(rbind, values), "values.csv")
write_versions()
