// Package api serves the methods of the lexicons: XRPC over HTTP (https://atproto.com/specs/xrpc).
// Each method has its own file: parse, call, encode. One table (methods.go) holds what differs
// between methods. Another (errors.go) says how errors are answered. dispatch.go has the way of a
// request.
//
// It may import every folder but operator, node, clientsim and cmd. Nothing of the domain knows it:
// HTTP and generated types end here. node serves it.
package api
