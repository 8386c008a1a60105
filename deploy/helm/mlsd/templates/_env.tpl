{{/* The settings of a node, without the database's. */}}
{{- define "mlsd.env" -}}
- {name: MLSD_LISTEN, value: ":8080"}
- {name: MLSD_ADMIN_LISTEN, value: ":8081"}
- {name: MLSD_ADMIN_TOKEN, value: {{ printf "file:/run/secrets/admin/%s" .Values.admin.tokenKey | quote }}}
{{- with .Values.admin.readTokenKey }}
- {name: MLSD_ADMIN_READ_TOKEN, value: {{ printf "file:/run/secrets/admin/%s" . | quote }}}
{{- end }}
{{- with .Values.admin.metricsTokenKey }}
- {name: MLSD_ADMIN_METRICS_TOKEN, value: {{ printf "file:/run/secrets/admin/%s" . | quote }}}
{{- end }}
- {name: MLSD_SERVICE_DID, value: {{ .Values.serviceDID | quote }}}
{{- with .Values.publicURL }}
- {name: MLSD_PUBLIC_URL, value: {{ . | quote }}}
{{- end }}
{{- with .Values.trustedProxies }}
- {name: MLSD_TRUSTED_PROXIES, value: {{ join "," . | quote }}}
{{- end }}
{{- if .Values.apns.existingSecret }}
- {name: MLSD_APNS_KEY_FILE, value: {{ printf "/run/secrets/apns/%s" .Values.apns.key | quote }}}
- {name: MLSD_APNS_KEY_ID, value: {{ .Values.apns.keyID | quote }}}
- {name: MLSD_APNS_TEAM_ID, value: {{ .Values.apns.teamID | quote }}}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
