package redact

import (
	"slices"

	"mlsd/internal/nsid"
)

// audience says who gets a column of an account's rows in an export. A column that the map columns
// does not name is exported to the account itself, under each of its sessions, and to an operator.
type audience int

const (
	nobody  audience = iota // the column gives rights, or is about operators, this machine or other people
	members                 // current members of the convo: the column changes when others do something
)

// columns lists, by table, the columns that an export leaves out, by the audience that still gets
// them. It covers the tables that have rows of accounts.
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
	"push_targets":          {nobody: {"secret", "auth"}},
	"received_invitations":  {nobody: {"domain", "hidden"}},
	"requests":              {nobody: {"node"}},
	"sent_invitations":      {nobody: {"domain", "last_error", "lot"}},
	"subscription_tickets":  {nobody: {"hash"}},
}

// Hidden returns the columns of a table that an export leaves out: for current members of the row's
// convo, and for everybody else.
func Hidden(table string) (toMembers, toOthers []string) {
	c := columns[table]
	return append([]string{}, c[nobody]...), slices.Concat([]string{}, c[nobody], c[members])
}

// SecretAnswers returns the methods whose answers give rights: a reader of such an answer can act
// as the device or the account that has got it. An export contains none of these answers.
func SecretAnswers() []string {
	return []string{nsid.CreateSession, nsid.EraseMyAccount, nsid.GetSubscriptionTicket, nsid.RefreshSession,
		nsid.RegisterPushTarget}
}
