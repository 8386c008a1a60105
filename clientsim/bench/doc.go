// Package bench measures mlsd under load, over HTTP, as clients see it. Afterwards it checks that
// every acknowledged message is stored, because a rate with lost messages means nothing.
//
//	prepare: servers, accounts, convos, ciphertexts
//	by turns, for each variant: sign tokens, load (warm-up, then the window that counts)
//	verify: read every convo, ask the server's own checker
//
// The load shares its machine with the server. So it has a cheap HTTP client of its own (wire), and
// it encrypts and signs before the measurement.
package bench
