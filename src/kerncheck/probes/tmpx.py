
def setup(o): 
    return o
def run(case, state):
    import os,time
    exec(case["do"])
    return {"v": case["name"]}
