package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/redact"
	"mlsd/operator"
)

// Request is one request for a page. It decides how the page shows private data.
//
// A DID is shown as did:plc:ewvi…64oiz, and a link names it by a reference (Ref), so that neither
// the page nor the browser's history contains the DID. If Full is set, the page shows DIDs in full:
// an operator has asked for that and given a reason, and a row of admin_actions records it.
type Request struct {
	Path  string
	Query url.Values
	Now   time.Time
	Full  bool
	Write bool // the caller may change something

	refKey *[32]byte
}

func (c *Console) request(r *http.Request) *Request {
	return &Request{
		Path: r.URL.Path, Query: r.URL.Query(), Now: time.Now().UTC(), Write: operator.LevelOf(r.Context()) == operator.Write,
		refKey: &c.refKey,
	}
}

const (
	didHead = 4 // how many characters after the method of a DID are shown
	didTail = 5 // how many characters at the end of a DID are shown
)

// DID returns a DID as the page shows it.
func (r *Request) DID(did any) string {
	text := fmt.Sprint(did)
	parts := strings.SplitN(text, ":", 3)
	if r.Full || len(parts) < 3 || parts[0] != "did" {
		return text
	}
	method, id := parts[0]+":"+parts[1]+":", parts[2]
	if len(id) <= didHead+didTail {
		return method + "…"
	}
	return method + id[:didHead] + "…" + id[len(id)-didTail:]
}

var anyDID = redact.DIDs()

// Text returns a text as the page shows it: DIDs in the text are shortened.
func (r *Request) Text(text any) string {
	return anyDID.ReplaceAllStringFunc(fmt.Sprint(text), func(did string) string {
		if plain, err := url.PathUnescape(did); err == nil && strings.HasPrefix(did, "did%") {
			did = plain // the DID is from a URL
		}
		return r.DID(did)
	})
}

// Time returns a time in UTC, with its age. A missing time is a dash.
func (r *Request) Time(t any) template.HTML {
	at, _ := t.(time.Time)
	if p, ok := t.(*time.Time); ok && p != nil {
		at = *p
	}
	if at.IsZero() {
		return "–"
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s">%s</time> <span class="age">%s</span>`,
		at.UTC().Format(time.RFC3339), at.UTC().Format("2006-01-02 15:04:05"), Age(r.Now.Sub(at))))
}

// Age returns a time span in words: 12 s ago, in 3 min.
func Age(d time.Duration) string {
	if d < 0 {
		return "in " + Span(-d)
	}
	return Span(d) + " ago"
}

// Span returns a time span in its largest unit, rounded down: 12 s, 3 min, 5 h, 2 d.
func Span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d d", int(d.Hours())/24)
}

// Ref returns the reference of a DID for links of this node: its encryption under a key that the
// node makes when it starts. Equal DIDs have equal references.
func (r *Request) Ref(did any) string {
	seal := r.seal()
	mac := hmac.New(sha256.New, r.refKey[:])
	fmt.Fprint(mac, did)
	nonce := mac.Sum(nil)[:seal.NonceSize()]
	return base64.RawURLEncoding.EncodeToString(seal.Seal(nonce, nonce, fmt.Append(nil, did), nil))
}

// ReadDID returns the DID that a parameter of the query names, in full or by its reference. It
// returns an error if the parameter is neither.
func (r *Request) ReadDID(name string) (syntax.DID, error) { return r.readDID(r.Query.Get(name)) }

func (r *Request) readDID(text string) (syntax.DID, error) {
	text = strings.TrimSpace(text)
	if did, err := syntax.ParseDID(text); err == nil {
		return did, nil
	}
	seal := r.seal()
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(sealed) < seal.NonceSize() {
		return "", operator.BadRequest("This is not a DID. A DID looks like did:plc:ewvi7nxzyoun6zhxrhs64oiz.")
	}
	did, err := seal.Open(nil, sealed[:seal.NonceSize()], sealed[seal.NonceSize():], nil)
	if err != nil {
		return "", &operator.Error{Status: http.StatusNotFound, Name: "UnknownReference",
			Message: "This link is from before the node's last start, or from another node. Open the page that it was on again."}
	}
	return syntax.DID(did), nil
}

func (r *Request) seal() cipher.AEAD {
	block, err := aes.NewCipher(r.refKey[:])
	if err != nil {
		panic(err) // the key has a valid length
	}
	seal, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return seal
}
