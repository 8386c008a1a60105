// Package keypackages is the ledger of KeyPackages (RFC 9420 §10). Owners publish KeyPackages. A
// KeyPackage goes to one caller, once. It is consumed when the service accepts a Welcome that names
// it. keypackages.go has the states, docs/KEYPACKAGES.md the budgets and signals.
//
// It owns the tables key_packages, key_package_init_keys and key_package_signals. It may import
// idem, outbox, mls and people. convos consumes KeyPackages; api and features publish and claim
// them.
package keypackages
