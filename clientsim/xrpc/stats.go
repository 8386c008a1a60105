package xrpc

import "sync/atomic"

// Stats counts what happened on the wire and on the phones.
type Stats struct {
	Sent      atomic.Int64 // application messages acknowledged
	Delivered atomic.Int64 // application messages decrypted by a recipient
	Retried   atomic.Int64 // attempts beyond a call's first
	Replays   atomic.Int64 // answers that were replays
	Verified  atomic.Int64 // parts of logs that were compared with signed heads
	WentBack  atomic.Int64 // times that a phone heard that the server went back
}
