// Package node is a node of the service: its settings, its parts and how they are connected
// (assemble.go), its start and its end (serve.go).
//
// It may import every folder but clientsim and cmd. The programs mlsd and mlsd-dev are made of it.
package node
