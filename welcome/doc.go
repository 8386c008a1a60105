// Package welcome delivers Welcomes (RFC 9420 §12.4.3.1) in two phases, so that an app that is
// killed between fetching and joining loses nothing. welcome.go has the states.
//
// It owns the tables welcomes (one row for each recipient device) and welcome_bodies (the bytes of
// each Welcome, once), and writes sent_invitations (Welcomes for people of other services), which
// features/network delivers. It may import keypackages, messages, idem and outbox. convos adds
// Welcomes; api fetches and confirms them.
package welcome
