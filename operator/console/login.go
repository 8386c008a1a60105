package console

import (
	"net/http"
	"net/url"
	"strings"

	"mlsd/operator"
)

// maxForm is the longest body of a form, in bytes.
const maxForm = 64 << 10

// loginPage asks for the token.
var loginPage = page{Path: "/login", Title: "Log in", name: "login"}

// loginForm is what the page shows.
type loginForm struct {
	Next   string // the page after the log-in
	Failed string // why the last attempt failed
}

// askToken shows the form. A browser that may already read is redirected.
func (c *Console) askToken(w http.ResponseWriter, r *http.Request) {
	next := localPath(r.URL.Query().Get("next"))
	if operator.LevelOf(r.Context()) >= operator.Read {
		http.Redirect(w, r, next, http.StatusSeeOther)
		return
	}
	c.show(w, r, view{Request: c.request(r), Page: loginPage, Bare: true, Data: loginForm{Next: next}}, nil)
}

// login checks the token and gives the browser a session.
func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	next := localPath(r.PostFormValue("next"))
	cookie, err := c.Access.Login(r, strings.TrimSpace(r.PostFormValue("token")))
	if err != nil {
		refusal := c.explain(r.Context(), loginPage, err)
		form := loginForm{next, sentence(refusal.Message)}
		c.show(w, r, view{Request: c.request(r), Page: loginPage, Bare: true, Data: form, Status: refusal.Status}, nil)
		return
	}
	setHeaders(w.Header())
	http.SetCookie(w, cookie)
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// logout removes the session from the browser.
func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	setHeaders(w.Header())
	http.SetCookie(w, c.Access.Logout(r))
	http.Redirect(w, r, loginPage.Path, http.StatusSeeOther)
}

// localPath returns text if it is a path of this listener, and "/" if it leads elsewhere.
func localPath(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "" || u.Host != "" || u.Opaque != "" || !strings.HasPrefix(u.Path, "/") ||
		strings.HasPrefix(u.Path, "//") || strings.ContainsAny(text, "\\\r\n\t") {
		return "/"
	}
	return u.RequestURI()
}
