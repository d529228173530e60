std = "lua54"
max_line_length = 120
cache = false
files["spec"] = {std = "+busted"}
files["lua/clalloc/meta.lua"] = {ignore = {"2..", "3..", "4.."}} -- declarations for editors: nothing in it is used
