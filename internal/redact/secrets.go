package redact

import (
	"slices"

	"mlsd/internal/nsid"
)

// audience says to whom an export gives a column of a row of the account's. A column that columns does
// not name is given to the account itself, under each of its sessions, and to an operator.
type audience int

const (
	nobody  audience = iota // it gives rights, or is of operators, of this machine, or of other people
	members                 // of the convo, as long as they are: it changes when others do something
)

// columns is the list of what is secret, and to whom, of the tables that have rows of accounts.
var columns = map[string]map[audience][]string{
	"abuse_reports":  {nobody: {"sealed", "binding", "digest", "size", "closed_by", "note"}},
	"accounts":       {nobody: {"blocked_by", "blocked_reason", "limited_by", "limited_reason"}},
	"admin_actions":  {nobody: {"operator", "reason"}},
	"attachments":    {nobody: {"digest", "fence"}, members: {"seq", "kept_from"}},
	"commit_reports": {members: {"settled_at"}},
	"convos": {nobody: {"reserved_for", "reserved_until"}, members: {"epoch", "last_seq", "last_message_at",
		"commit_level", "key_retired", "closed_at", "successor_group_id", "successor_id", "predecessor_id"}},
	"disputes":              {members: {"state", "ends_at", "ended_at"}},
	"erasure_confirmations": {nobody: {"hash"}},
	"erasures":              {nobody: {"salt", "requested_by", "reason"}},
	"events":                {nobody: {"convo_ids", "seqs", "sizes"}},
	"idempotency_keys":      {nobody: {"response", "last_error"}}, // see SecretAnswers
	"invitations":           {nobody: {"address"}},
	"key_packages":          {nobody: {"claimed_by"}},
	"outbox":                {nobody: {"convo_ids", "seqs", "sizes"}},
	"public_groups":         {nobody: {"state", "group_info", "vouched_by", "external_senders"}, members: {"epoch"}},
	"push_targets":          {nobody: {"secret"}},
	"received_invitations":  {nobody: {"domain", "hidden"}},
	"requests":              {nobody: {"node"}},
	"sent_invitations":      {nobody: {"last_error"}},
	"subscription_tickets":  {nobody: {"hash"}},
}

// Hidden returns the columns of a table that an export leaves out: for the members of the row's convo,
// and for who is none, or none any more.
func Hidden(table string) (toMembers, toOthers []string) {
	c := columns[table]
	return append([]string{}, c[nobody]...), slices.Concat([]string{}, c[nobody], c[members])
}

// SecretAnswers are the methods whose answers give rights: who has read one can act as the device or
// the account that has got it. An export has no answer of theirs.
func SecretAnswers() []string {
	return []string{nsid.CreateSession, nsid.EraseMyAccount, nsid.GetSubscriptionTicket, nsid.RefreshSession,
		nsid.RegisterPushTarget}
}
