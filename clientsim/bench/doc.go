// Package bench measures mlsd under load, over HTTP, as clients see it, and checks afterwards that everything it had acknowledged is
// there: a rate at which messages are lost is no rate.
//
//	prepare: servers, accounts, convos, ciphertexts
//	┌─▶ sign the tokens of a stretch ─▶ load (warm-up, then the window that counts) ─┐   for each variant, and that by turns
//	└────────────────────────────────────────────────────────────────────────────────┘
//	verify: read every convo, ask the server's own checker
//
// The load shares its machine with what it measures, so it has a client of its own (see wire) that does little, and whatever can be
// done beforehand, such as encrypting and signing, is done before the time begins to count.
package bench
