// Package clientsim is the folder of the client simulator. It plays MLS clients against a delivery
// service, with faults, and checks that the server keeps every promise.
//
// It is a black box: it talks HTTP, and may import only the codec and types of api, the verifier of
// logs, terminal and mls. Only a server of its own can be killed, also exactly at a COMMIT, and have
// time pass in its database. Read it in this order: mlsclient (real MLS), xrpc (calls and the retry
// rule), history (what must be true), client (a phone), testbed (servers, faults, World), scenario.
// traffic, torture, soak, load, bench and attack are built on these. cmd/clientsim runs it, and
// cmd/mlsd-dev has its phones.
package clientsim
