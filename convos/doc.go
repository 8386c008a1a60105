// Package convos keeps the roster and the epoch of each group. Only this package advances an epoch,
// in one transaction with everything that belongs to the commit: the log entry, the roster change,
// the Welcomes, the GroupInfo and the consumed KeyPackages.
//
// It owns the tables convos, members, invitations and public_groups. The columns last_seq and
// last_message_at of convos belong to package messages. It may import messages, welcome,
// keypackages, idem, outbox and people. api, operator and features call it.
package convos
