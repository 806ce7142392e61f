{{- define "grpo-operator.labels" -}}
app.kubernetes.io/name: grpo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "grpo-operator.selector" -}}
app.kubernetes.io/name: grpo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The image of a process: (list . key name). The key is its value's, the name is the registry's.
     `helm upgrade --reuse-values` brings values of a chart that had neither registry nor tag. */}}
{{- define "grpo-operator.image" -}}
{{- $images := (index . 0).Values.images -}}
{{- default (printf "%s/%s:%s" (default "grpo.dev" $images.registry) (index . 2) (default "dev" $images.tag)) (index $images (index . 1)) -}}
{{- end }}

{{/* Name of what is the cluster's, and not a namespace's: two installations share none. */}}
{{- define "grpo-operator.clusterName" -}}
grpo-operator:{{ .Release.Namespace }}
{{- end }}
