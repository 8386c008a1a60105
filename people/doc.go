// Package people is the folder of what the heart asks about a person: whether its account may use
// the node (accounts), whom it lets into its convos (consent), how much it may store (quota), and
// under which session it calls (sessions).
//
// Packages here own their tables, and may import only internal and each other. All folders above
// the tools call them.
package people
