// Package attack holds programs that attack a server on this machine, and measures what honest
// users notice. Each attack comes from addresses of its own, is bounded in time and size, and
// belongs to a finding of an examination (H1, H2 …). The server must serve the honest users during
// an attack as before it.
//
//	prepare: a new database, a server with its default limits, honest users, the attacker's accounts
//	calm, attack, after: honest requests at a steady rate; the attack runs in the second phase
//	verdict: honest success, honest latency, memory, and what the attack itself claims
//
// Everything is on loopback addresses. Attackers use 127.1.0.0/16, honest users 127.0.0.1.
package attack
