// Package clientsim plays MLS clients against a delivery service, with faults,
// and checks that every promise is kept. It is a black box: it talks HTTP and
// knows no more of the server than the contract says, except that a server of
// its own can be killed, also exactly at a COMMIT (failpoint.go), and has a database
// in which time can be made to pass (age.go).
//
// What it is made of, from the person to the wire:
//
//	Scenario   a story with a promise at its end             scenario*.go
//	World      the accounts, phones and faults of one story   world.go
//	Phone      a device that does what a phone must: it       phone.go, draft.go,
//	           journals before it sends, keeps a Welcome      settle.go, sync.go,
//	           before it joins, comes back after it has       roster.go, welcome.go,
//	           lost all, and survives being killed            devices.go, rejoin.go
//	Device,    real MLS, behind two interfaces                mls.go, mlsgo_*.go
//	Group
//	Client     XRPC with service-auth tokens, and the retry   xrpc.go, calls.go,
//	           rule                                           retry.go, account.go
//	Faulty     loses requests and answers, repeats, delays    fault.go, plan.go
//	Ledger     compares every answer under a key with the     ledger.go
//	           first one, heard or not
//
// Beside them, the Directory (plc.go) lets the server resolve the accounts, and
// Proc (server.go, sibling.go) is the server's process. The Receiver (receiver.go)
// is where phones have their pushes sent (pushed.go). A Subscriber (subscriber.go,
// happening.go, cbor.go) listens to the event stream; its Vigil (vigil.go) judges
// what it is told, in the end against the Chronicle (chronicle.go) of what was
// acknowledged. A fleet (fleet.go, postmaster.go) is two servers on a PostgreSQL
// that belongs to neither. The Model (model.go) is the
// simulator's own account of what was sent and acknowledged; after each
// scenario the checker (check.go, check*.go, outsiders.go)
// reads everything that every member can see and holds it against the model.
// Last it asks the server's own checker (database.go) about what is stored.
//
// The Tour (tour.go, tourist.go) is something else: two people of the same
// make, for a person with curl, who is the client.
package clientsim
