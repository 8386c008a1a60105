package mls

import "strconv"

// Welcome is the part of a Welcome that is not encrypted: its recipients (RFC 9420 §12.4.3.1). The
// GroupInfo in it is encrypted.
type Welcome struct {
	CipherSuite CipherSuite
	Refs        []KeyPackageRef // at least one, all different; they alias the message
}

// ParseWelcome parses an MLSMessage that contains a Welcome.
//
// Errors: ErrTooLarge, ErrMalformed (for example no recipient, or a recipient twice),
// ErrUnsupported.
func ParseWelcome(msg []byte) (Welcome, error) {
	if err := checkSize("Welcome", msg, MaxWelcomeSize); err != nil {
		return Welcome{}, err
	}
	r := newReader("Welcome", msg)
	if f := r.mlsMessage(); r.err == nil && f != WireFormatWelcome {
		r.malformed("wire_format", "not Welcome but "+f.String())
	}
	w := r.welcome()
	if err := r.finish(); err != nil {
		return Welcome{}, err
	}
	if err := checkSize("Welcome", msg, w.CipherSuite.Limits().Welcome); err != nil {
		return Welcome{}, err
	}
	return w, nil
}

// welcome reads a bare Welcome.
func (r *reader) welcome() (w Welcome) {
	r.in = place{"Welcome", "12.4.3.1"}
	w.CipherSuite = CipherSuite(r.u16("cipher_suite"))
	size := w.CipherSuite.hashSize()
	seen := make(map[string]struct{})
	r.vector("secrets", func(r *reader) {
		ref := r.opaque("secrets.new_member")
		r.hpkeCiphertext()
		if r.err != nil {
			return
		}
		if size != 0 && len(ref) != size {
			r.in.section = "5.2"
			r.malformed("secrets.new_member", "not "+strconv.Itoa(size)+" bytes")
			return
		}
		if _, twice := seen[string(ref)]; twice {
			r.malformed("secrets.new_member", "one KeyPackageRef twice")
			return
		}
		seen[string(ref)] = struct{}{}
		w.Refs = append(w.Refs, ref)
	})
	if len(w.Refs) == 0 {
		r.malformed("secrets", "empty")
	}
	r.opaque("encrypted_group_info")
	return w
}
