// Package clientsim is the folder of the client simulator. It plays MLS clients against a delivery
// service, with faults, and checks that the server keeps every promise. It is a black box: it talks
// HTTP. Only a server of its own can be killed, also exactly at a COMMIT, and have time pass in its
// database.
//
//	agents      programs in Rust and TypeScript that hold devices of other MLS libraries
//	mlsclient   real MLS behind two interfaces, Device and Group; the only importer of an MLS library
//	xrpc        accounts and tokens, a call per method, the retry rule, the events of the streams
//	history     what must be true: Model, History, Ledger and Observer, and the checks that compare
//	client      a phone that journals, retries and survives kills; a subscriber; a push receiver
//	testbed     servers, databases, faults, the PLC directory, and World: what scenarios share
//	scenario    one file per family of scenarios; Run plays them and reports
//	bench       the load benchmark and its report
//	attack      programs that attack a server while honest users are measured
//	torture     clients that write while connections, servers and PostgreSQL fail all the time
//	soak        everything at a moderate load for hours, sampled: what grows?
//	generators  the test that others can generate clients from the lexicons
//
// Each package imports only those above it in this list, except that bench, attack, torture
// and generators do not use scenario. The devices of "mlsd-dev" are phones of package client.
package clientsim
