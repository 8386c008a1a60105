// Package operator is what an operator can ask a running server, and make it do: the methods of the
// table in method.go, and the rules who may call them. Each method is a function whose result is a
// struct.
//
// It owns the table admin_actions: a method that writes inserts a row there before its first
// effect. The effects are functions of the packages that own the tables. So it may import the
// heart, people and features. node serves it, and cmd/mlsd prints what it answers.
package operator
