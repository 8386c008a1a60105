package verifier

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Lie says that the server has lied. This finding is permanent.
type Lie struct {
	Sentence string    `json:"sentence"`
	Evidence []string  `json:"evidence,omitempty"` // signed heads
	At       time.Time `json:"at"`
}

func (l *Lie) Error() string { return l.Sentence }

// WentBack says that the server's database went back to an earlier state: a restore, or a failover
// that lost writes. It is not a lie, because the server says so by the generation in the head. But
// a server that shows members different logs could give each member different generations. So an
// app should tell the members, who ask the operator.
type WentBack struct {
	From, To   int64 // numbers of entries: seen before by the device or the member, and in the new head
	Common     int64 // the entries that both have, as far as the device can tell; 0 for a member's head
	Generation int64
	Evidence   []string // the last head before, if there is one, and the first head after
	Member     string   // the member who had seen the log before; "" means the device itself
	Why        string   // the acknowledged entry that is not in the log, if that shows it
}

func (w *WentBack) Error() string {
	if w.Member != "" {
		return fmt.Sprintf("the server went back, or has two logs: %s has a head of %d entries of an earlier generation, "+
			"and the log does not begin with them (generation %d)", w.Member, w.From, w.Generation)
	}
	sentence := fmt.Sprintf("the server went back from %d entries to %d; the first %d are the same (generation %d)",
		w.From, w.To, w.Common, w.Generation)
	if w.Why != "" {
		sentence += ": " + w.Why
	}
	return sentence
}

// OtherKey says that a member has a head that is signed in the service's name, but with a key that
// the service has not given to this device. Either the member has made up the key, or the server
// gives members keys of their own, so that their heads cannot be compared. Only the members can
// find out which of the two is true, by comparing the keys.
type OtherKey struct {
	Member   string
	KeyHash  uint32
	Signed   bool     // the member has sent the key, and the head is signed with it
	Evidence []string // the member's text, and the newest head that the device has checked
}

func (o *OtherKey) Error() string {
	return fmt.Sprintf("%s has a head that is signed with another key of the service (%08x): one of them has made it up",
		o.Member, o.KeyHash)
}

// ErrNotSigned says that a text from a member is not a head that the service has signed. It says
// nothing of the server, because the member could have made up the text.
var ErrNotSigned = errors.New("the member's head is not signed by the service")

// ErrReadAgain says that what was shown does not fit a signed head. The device may have read the
// entries before a failover of which it does not know. So the device reads the entries behind Size
// again, from the server, and shows them to the Verifier. If they do not fit again, the result is a
// Lie.
var ErrReadAgain = errors.New("entries do not fit the signed head; read them again")

func (v *Verifier) lie(evidence []string, format string, args ...any) error {
	if v.s.Lie == nil {
		v.s.Lie = &Lie{Sentence: fmt.Sprintf(format, args...), Evidence: evidence, At: v.now()}
	}
	return v.s.Lie
}

func (v *Verifier) lied() error {
	if v.s.Lie == nil {
		return nil
	}
	return v.s.Lie
}

func (v *Verifier) addBack(b WentBack) {
	v.s.Backs = append(v.s.Backs, b)
	if extra := len(v.s.Backs) - maxBacks; extra > 0 {
		v.s.Backs = slices.Delete(v.s.Backs, 0, extra)
	}
}

// nameOf names who has given a head.
func nameOf(from string) string {
	if from == "" {
		return "the server"
	}
	return from
}

func stamp(t time.Time) string { return t.UTC().Format(timeLayout) }
