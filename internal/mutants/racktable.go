package main

// rackBugs are bugs that clientsim torture must find within rackLimit. Each of them breaks a
// promise only if something fails at a certain moment, or if requests meet. No test finds them.
var rackBugs = []mutant{
	{"a lost COMMIT is a success", "", []edit{
		{"idem.Store.resolve", `if errors.Is(err, pgx.ErrNoRows) {`, `… return answer, nil`}}},
	{"a lost COMMIT is a success (messages)", "", []edit{
		{"messages.Log.transact", `err = &lostError{err, began}`, `_, err = began, nil`}}},
	{"a lost COMMIT is a refusal", "", []edit{
		{"idem.Store.resolve", `if errors.Is(err, pgx.ErrNoRows) {`, `… return Answer{}, &ConflictError{At: time.Now()}`}}},
	{"a lost COMMIT is resolved without the content", "", []edit{
		{"idem.Store.resolve", `if err := rec.conflict(req); err != nil { return Answer{}, err }`, ``}}},
	{"a lost COMMIT is resolved without the content (messages)", "", []edit{
		{"messages.lookup", `WHERE r.request_hash = d.hash`, `WHERE d.hash IS NOT NULL`}}},
	{"a lost COMMIT is a success (Welcomes)", "", []edit{
		{"welcome.attempt", `case pgpool.ConnectionLost(err):`, `… return nil`}}},
	{"the floor of the outbox is one too high", "", []edit{
		{"events.floor.raise", `SET floor = $1`, `SET floor = $1 + 1`},
		{"events.floor.raise", `floor{at: f.candidate,`, `floor{at: f.candidate + 1,`}}},
	{"the floor of the outbox does not wait for writers", "", []edit{
		{"events.floor.seek", `f.moved, f.ended = false, len(f.writers) == 0`, `f.moved, f.ended = false, true`}}},
	{"a KeyPackage is claimed twice", "", []edit{{"keypackages/claim.sql", `FOR UPDATE SKIP LOCKED`, ``}}},
	{"the record of a key after its write", "", recordAfter},
	{"a key is looked for, and not taken", "", []edit{onlyLooks, recordsLast}},
	{"a full disk is the server's fault", "", []edit{
		{"internal/pgpool.Unavailable", `code[:2] == "53"`, `code == "53300"`}}},
	{"a message is judged by an old snapshot", "", oldSnapshot},
	{"a commit does not lock its convo", "", []edit{{"convos.lockConvo", `FOR NO KEY UPDATE`, ``}}},
}
