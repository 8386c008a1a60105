// Package features is the folder of what stands around the heart and owns tables: attachments,
// calls of devices (push), other delivery services (network), what the network says about accounts
// (relay), signed heads of logs (transparency), erasure, exports (archive), reports of abuse
// (reports), and what became of requests (requests).
//
// A feature may import the heart, people and other features. The heart (idem, outbox, messages,
// keypackages, welcome, convos, events) imports no feature: it leaves rows in outbox, or node
// passes it a function. api, operator and node call features.
package features
