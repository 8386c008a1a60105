package console

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// byAccount are the pages that can be opened for an account.
var byAccount = []string{"/account", "/idempotency"}

// find opens a page for the account whose DID a form names. That an operator looks at a person is
// recorded, with the reason. The page's own address has the reference of the DID.
func (c *Console) find(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	req, path := c.request(r), r.PostFormValue("page")
	at := slices.IndexFunc(c.pages(), func(p page) bool { return p.Path == path })
	if !slices.Contains(byAccount, path) || at < 0 {
		http.NotFound(w, r)
		return
	}
	did, err := req.readDID(r.PostFormValue("did"))
	if err == nil {
		err = c.Operator.RecordShown(r.Context(), path+" did="+did.String(), r.PostFormValue("operator"),
			r.PostFormValue("reason"))
	}
	if err != nil {
		c.show(w, r, view{Request: req, Page: c.pages()[at]}, err)
		return
	}
	setHeaders(w.Header())
	http.Redirect(w, r, path+"?did="+url.QueryEscape(req.Ref(did)), http.StatusSeeOther)
}

// method returns the method's own name.
func method(nsid string) string { return nsid[strings.LastIndexByte(nsid, '.')+1:] }

// short returns the ends of a long id.
func short(id any) string {
	const ends, longest = 6, 24
	text := fmt.Sprint(id)
	if len(text) <= longest {
		return text
	}
	return text[:ends] + "…" + text[len(text)-ends:]
}

// share formats a share of 1 as per cent.
func share(f float64) string { return fmt.Sprintf("%.3g %%", 100*f) }

// size formats a number of bytes.
func size(n any) string {
	switch n := n.(type) {
	case int:
		return byteSize(float64(n))
	case int64:
		return byteSize(float64(n))
	}
	return fmt.Sprint(n)
}

// listView is what a shared list shows, and how.
type listView struct {
	*Request
	List any
}

// With returns a list for a shared template.
func (r *Request) With(list any) listView { return listView{r, list} }
