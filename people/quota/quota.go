// Package quota bounds what one DID, one address and one convo can store and do in a day. A day is
// a day of UTC. docs/QUOTAS.md tells operators and clients the same.
//
// Requests are counted in memory and written every few seconds, so a check costs no round trip. The
// row in the table quota_counts is the sum over all nodes. A node reads it before the first request
// of a subject, and again every few seconds while the subject is active. So a node knows all use
// except the last seconds on other nodes. counter.go states the bound.
package quota

import (
	"fmt"
	"math"
	"time"
)

// Resource is what a quota counts.
type Resource int

// Resources that are counted by day.
const (
	Messages        Resource = iota // entries of logs: messages, proposals, commits
	Bytes                           // bytes of stored MLS objects and idempotency records
	Convos                          // created convos
	Outsiders                       // invited people who share no convo with the inviter
	Records                         // idempotency records
	KeyPackages                     // published KeyPackages
	Reports                         // reports of abuse
	AttachmentBytes                 // bytes of announced attachments
	UploadedBytes                   // bytes of parts of attachments, as they arrive
	Resets                          // resets of convos
	resources
)

// Names of the quotas that do not limit a resource of a DID on a day.
const (
	ConvoBytes      = "convo-bytes-per-day"
	OpenInvitations = "open-invitations"
	// OneInviter bounds the invitations of one inviter to one person.
	OneInviter  = "invitations-to-one-person"
	ReportBytes = "report-bytes"
	// ResetsOfConvo bounds how often a convo and its successors are reset. It has no setting.
	ResetsOfConvo = "resets-of-convo"
	// AddressShare is how many times larger the quotas of one address are than those of a DID.
	AddressShare = "address-share"
)

const (
	// LargestReport is the size of the largest report of abuse, in bytes.
	LargestReport = 256 << 10
	// addressPart is the part of ReportBytes, and of a person's OpenInvitations, that one address
	// can fill in a day: a tenth. If the part were larger, one person with many DIDs could stop all
	// reports, or all invitations of a person.
	addressPart = 10
)

// addressPrefix and the name of a DID's quota make the name of an address's quota.
const addressPrefix = "address-"

// Quota is one row of the table of quotas.
type Quota struct {
	Name    string // name in errors, metrics and mlsd inspect
	Setting string // its environment variable; "" means none, see Complete
	Default int64
	Bytes   bool   // the quota is in bytes
	Counts  string // what the quota counts, for --help
}

// All returns the table of quotas. Quotas of resources come first, in the order of the resources.
func All() []Quota {
	return []Quota{
		Messages: {"messages-per-day", "MLSD_QUOTA_MESSAGES", 50_000, false,
			"messages, proposals and commits of one DID in a day"},
		Bytes: {"bytes-per-day", "MLSD_QUOTA_BYTES", 512 << 20, true,
			"bytes of MLS objects and idempotency records that one DID stores in a day; 256 for each person on a roster"},
		Convos: {"convos-per-day", "MLSD_QUOTA_CONVOS", 500, false, "convos that one DID creates in a day"},
		Outsiders: {"outsiders-invited-per-day", "MLSD_QUOTA_OUTSIDERS", 1_000, false,
			"people that one DID invites in a day and shares no convo with"},
		Records: {"records-per-day", "", 50_000, false, "idempotency records of one DID in a day: as many as messages"},
		KeyPackages: {"key-packages-per-day", "MLSD_QUOTA_KEY_PACKAGES", 2_000, false,
			"KeyPackages that one DID publishes in a day, those with bad signatures included"},
		Reports: {"reports-per-day", "MLSD_QUOTA_REPORTS", 20, false, "reports of abuse of one DID in a day"},
		AttachmentBytes: {"attachment-bytes-per-day", "MLSD_QUOTA_ATTACHMENT_BYTES", 1 << 30, true,
			"bytes of attachments that one DID announces in a day, each as 64 KiB at least"},
		UploadedBytes: {"uploaded-bytes-per-day", "", uploads << 30, true,
			"bytes of parts of attachments that one DID sends in a day, also those sent again or refused: three times those " +
				"announced"},
		Resets: {"resets-per-day", "", 20, false, "convos that one DID resets in a day"},
		{ConvoBytes, "MLSD_QUOTA_CONVO_BYTES", 4 << 30, true,
			"bytes written to one convo in a day; commits count and are never refused"},
		{OpenInvitations, "MLSD_QUOTA_OPEN_INVITATIONS", 200, false,
			"invitations that one person has not accepted, when somebody who shares no convo with it invites it"},
		{OneInviter, "MLSD_QUOTA_INVITATIONS", 3, false,
			"invitations of one DID to one person that are open, or were not accepted in a day, if they share no convo"},
		{ReportBytes, "MLSD_QUOTA_REPORT_BYTES", 1 << 30, true,
			"bytes of open reports of abuse, of all DIDs together; as many again of closed ones"},
		{AddressShare, "MLSD_QUOTA_ADDRESS_SHARE", 200, false,
			"how many times the daily quotas of a DID one address has (IPv6: its /64)"},
	}
}

// Limits are the limits by the quota's name. 0, or no entry, means no limit.
type Limits map[string]int64

// uploads is how often a DID can send the bytes of attachments that it can announce in a day.
const uploads = 3

// Complete adds the quotas that have no setting. They are fixed, or follow from other quotas.
func (l Limits) Complete() {
	all := All()
	l[all[Records].Name] = l[all[Messages].Name]
	l[all[UploadedBytes].Name] = uploads * min(l[all[AttachmentBytes].Name], math.MaxInt64/uploads)
	l[all[Resets].Name] = all[Resets].Default
}

// Defaults returns the limits that apply unless the operator sets others.
func Defaults() Limits {
	l := Limits{}
	for _, q := range All() {
		l[q.Name] = q.Default
	}
	return l
}

// ofAddress returns the limit of an address for a resource whose limit for a DID is limit.
func (l Limits) ofAddress(limit int64) int64 {
	share := l[AddressShare]
	if share != 0 && limit > math.MaxInt64/share {
		return math.MaxInt64
	}
	return limit * share
}

// Scaled returns percent per cent of a limit, at least 1. A limit of 0 means no limit, and stays 0.
func Scaled(limit int64, percent int) int64 {
	p := int64(percent)
	switch {
	case limit == 0 || p == 100:
		return limit
	case limit/100 >= math.MaxInt64/p:
		return math.MaxInt64
	}
	return max(limit/100*p+limit%100*p/100, 1)
}

// ByDay returns the limits of all quotas that are counted by day, under their stored names. Quotas
// without a limit are missing.
func (l Limits) ByDay() Limits {
	out := Limits{}
	for k, names := range storedNames() {
		for r, name := range names {
			if limit := l.of(subjectKind(k), Resource(r)); limit != 0 {
				out[name] = limit
			}
		}
	}
	return out
}

// of returns the limit of a kind of subject for a resource.
func (l Limits) of(k subjectKind, r Resource) int64 {
	switch k {
	case didSubject:
		return l[All()[r].Name]
	case addressSubject:
		limit := l.ofAddress(l[All()[r].Name])
		if most := l[ReportBytes]; r == Reports && most != 0 {
			limit = min(limit, max(l[All()[r].Name], most/addressPart/LargestReport))
		}
		return limit
	}
	if r == Bytes {
		return l[ConvoBytes]
	}
	return 0
}

// storedNames returns the names of the quotas by kind of subject and resource. "" means that there
// is no such quota.
func storedNames() (names [kinds][resources]string) {
	for r, q := range All()[:resources] {
		names[didSubject][r], names[addressSubject][r] = q.Name, addressPrefix+q.Name
	}
	names[convoSubject][Bytes] = ConvoBytes
	return names
}

// Names returns the names that an ExceededError can have.
func Names() (names []string) {
	for _, ofKind := range storedNames() {
		for _, name := range ofKind {
			if name != "" {
				names = append(names, name)
			}
		}
	}
	return append(names, OpenInvitations, OneInviter, addressPrefix+OneInviter, ReportBytes, ResetsOfConvo)
}

// ExceededError says that a quota is used up.
type ExceededError struct {
	Quota       string
	Used, Limit int64         // if Limit is 0, only the operator may know both
	Resets      time.Time     // zero means at no set time
	After       time.Duration // how long a client should wait before it tries again
}

// Error has a fixed form, because a PDS passes nothing else on: docs/CLIENTS.md.
func (e *ExceededError) Error() string {
	switch {
	case e.Limit == 0:
		return fmt.Sprintf("quota %s is used up", e.Quota)
	case e.Resets.IsZero():
		return fmt.Sprintf("quota %s is used up: %d of %d", e.Quota, e.Used, e.Limit)
	}
	return fmt.Sprintf("quota %s is used up: %d of %d; resets at %s", e.Quota, e.Used, e.Limit,
		e.Resets.UTC().Format(time.RFC3339))
}

// stateRetry is how long a client waits for a quota that is not reset daily.
const stateRetry = time.Hour

// Invitations are the bounds of invitations of people who share no convo with the inviter. 0 means
// any number. No error contains the invited person's own numbers, because the inviter must not
// learn them.
type Invitations struct {
	Address    string // the inviter's address, or its /64
	Outsiders  bool   // whether the number of people that a DID invites in a day is bounded
	Open       int64  // open invitations of one person
	OneInviter int64  // invitations of one person by one inviter
	OneAddress int64  // invitations of one person from one address
}

// Check compares one person's invitations with the bounds. Error: *ExceededError.
func (i Invitations) Check(open, ofInviter, ofAddress int64) error {
	for _, b := range []struct {
		quota       string
		used, limit int64
	}{
		{OneInviter, ofInviter, i.OneInviter},
		{addressPrefix + OneInviter, ofAddress, i.OneAddress},
		{OpenInvitations, open, i.Open},
	} {
		if b.limit != 0 && b.used >= b.limit {
			return &ExceededError{Quota: b.quota, After: stateRetry}
		}
	}
	return nil
}

// invitations returns the bounds of invitations, without an address.
func (l Limits) invitations() Invitations {
	i := Invitations{Outsiders: l.of(didSubject, Outsiders) != 0, Open: l[OpenInvitations], OneInviter: l[OneInviter]}
	if i.Open != 0 && i.OneInviter != 0 {
		i.OneAddress = max(i.OneInviter, i.Open/addressPart)
	}
	return i
}

// TooManyReports is the error for a report of abuse when as many reports are open as are allowed.
func TooManyReports() *ExceededError {
	return &ExceededError{Quota: ReportBytes, After: stateRetry}
}
