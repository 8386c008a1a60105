package console

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"mlsd/operator"
)

// byAccount are the pages that can be opened for an account.
var byAccount = []string{"/account", "/idempotency"}

// find opens a page for the account whose DID a form names. It records that the operator looks at a
// person, with the reason. The address of the page has only the reference of the DID.
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

// short returns the beginning and the end of a long id.
func short(id any) string {
	const ends, longest = 6, 24
	text := fmt.Sprint(id)
	if len(text) <= longest {
		return text
	}
	return text[:ends] + "…" + text[len(text)-ends:]
}

// share formats a share as per cent. 1 is 100 per cent.
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

// listView is the data of a shared list template.
type listView struct {
	*Request
	List any
}

// With returns the data of a shared list template.
func (r *Request) With(list any) listView { return listView{r, list} }

// reveal returns the handler that shows a page with DIDs in full, once. First it records who has
// asked for them and why. The request is a POST to the page's own address.
func (c *Console) reveal(p page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		req := c.request(r)
		operator, reason := r.PostFormValue("operator"), r.PostFormValue("reason")
		if err := c.Operator.RecordShown(r.Context(), req.subject(), operator, reason); err != nil {
			c.show(w, r, view{Request: req, Page: p}, err)
			return
		}
		req.Full = true
		c.load(w, r, p, req)
	})
}

// subject returns the text of a page in the record: its path and the fields of its query. The
// reference of a DID means nothing to readers of the record, so the text has the DID.
func (r *Request) subject() string {
	parts := []string{r.Path}
	for name := range r.Query {
		value := r.Query.Get(name)
		if did, err := r.ReadDID(name); err == nil {
			value = did.String()
		}
		parts = append(parts, name+"="+value)
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// button is a button that begins an action. Its form has the method's parameters.
type button struct {
	Method, Label, About string
	Params               []param
}

// param is a parameter of a button's method.
type param struct{ Name, Value string }

// Act returns a button for the thing that about names. params are names and values in turn. A DID
// is replaced by its reference.
func (r *Request) Act(method, label string, about any, params ...any) button {
	b := button{Method: method, Label: label, About: fmt.Sprint(about)}
	for i := 0; i+1 < len(params); i += 2 {
		p := param{fmt.Sprint(params[i]), fmt.Sprint(params[i+1])}
		if p.Name == "did" {
			p.Value = r.Ref(p.Value)
		}
		b.Params = append(b.Params, p)
	}
	return b
}

// AllOthers stands for callers that are not counted by name.
func (*Request) AllOthers() string { return operator.AllOthers }
