package console

import (
	"net/http"
	"slices"
	"strings"
)

// reveal returns the handler that shows a page with DIDs in full, once, after it has recorded who
// asked for it and why. It is a POST of the page's own address.
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

// subject is what the record says of a page: its path and the fields of its query. The reference of
// a DID means nothing to those who read the record, so it names the DID.
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
