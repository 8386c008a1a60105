package consent

// ReadStandings is the statement that decides, for tests of its plan.
var ReadStandings = readStandings
