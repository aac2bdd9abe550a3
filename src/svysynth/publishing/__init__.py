"""The public and the internal folder of a release, its reports, its verdict and its verification."""
