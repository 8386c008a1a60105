// Package serviceauth checks the service-auth tokens with which AT Protocol
// clients, directly or through their PDS, call this server.
//
// A token is a JWT signed with the caller's own #atproto key
// (https://atproto.com/specs/xrpc#inter-service-authentication-jwt). The caller
// is its iss and nothing else: there is no sub in service auth.
//
// Every check is placed so that a stranger cannot make it cost more than it
// cost the stranger:
//
//	size and form ─▶ claims ─▶ verified before? ─▶ key of iss ─▶ alg, signature ─▶ jti
//	   no memory     no I/O      no signature      one look-up    one refresh       one row
//	                                               per DID        per DID and min   (procedures)
//
// A token that is expired, meant for another service or another method costs no
// look-up. A signature that does not verify may mean that the caller rotated
// its key, so the key is looked up afresh, at most once a minute for a DID and
// within a budget for all of them. A jti is used up last, so that nobody can
// use up the jti of a token that is not theirs; a message uses it up in its own
// transaction.
package serviceauth
